"""Machines over ssh: each recorded and watched as this one is, all of them a fleet."""

from gpudash.sources.ssh.asking import SshQuestion

__all__ = ["SshQuestion"]
