"""Machines over ssh: each is recorded and watched like this one; together they are a fleet."""

from gpudash.sources.ssh.asking import SshQuestion

__all__ = ["SshQuestion"]
