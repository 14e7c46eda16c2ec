from gpudash.session.api.estimating import estimate as estimate
from gpudash.session.api.estimating import fits as fits
from gpudash.session.api.memory import explain as explain
from gpudash.session.api.memory import measure as measure
from gpudash.session.api.notebook import live_figure as live_figure
from gpudash.session.api.notebook import load_ipython_extension as load_ipython_extension
from gpudash.session.api.notebook import unload_ipython_extension as unload_ipython_extension
from gpudash.session.api.recordings import read_recording as read_recording
from gpudash.session.api.simulating import simulate as simulate
from gpudash.session.api.simulating import watch_this_process as watch_this_process
from gpudash.session.api.tracking import log_to as log_to

__version__: str
