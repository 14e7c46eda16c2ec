"""The tabs below the plots."""
