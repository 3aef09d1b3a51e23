"""Identity-Aware Proxy's way to a port of a VM: its protocol, a connection by it, and what ssh runs for one."""
