"""Run Python training steps on TPUs from anywhere, without a server, a cluster or an image build."""

__version__ = "0.1.0"
