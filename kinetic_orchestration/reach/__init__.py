"""The way to a running host: a shell and ports, by Identity-Aware Proxy, by Kubernetes' exec, or on this machine."""
