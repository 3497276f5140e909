"""Names of the package for type checkers: the table of __init__.py."""

from .errors import DataError as DataError, Error as Error, UsageError as UsageError
from .errors import VerificationError as VerificationError
from .api import policies as policies, replay as replay, sample as sample
from .api import sweep as sweep, synth as synth, verify as verify
from .compact_cache import CompactCache as CompactCache
from .comparison import compare as compare
from .explanation import Explanation as Explanation, explain as explain
from .figures import Figures as Figures, figure_names as figure_names, plot as plot, report as report
from .kvpress import from_kvpress as from_kvpress
from .kvtrace.engines import from_engine as from_engine
from .kvtrace.writer import PathNorm as PathNorm, TraceWriter as TraceWriter
from .bytes_for_loss import least_bytes as least_bytes
from .live_press import press as press
from .model import capture as capture, closed_loop as closed_loop, demo_model as demo_model
from .policy import Policy as Policy
from .program import KvsimWarning as KvsimWarning
from .results import Results as Results, open_results as open_results
from .searches.api import search as search
from .studies.api import choose as choose, study as study
from .token_dropping import drop_tokens as drop_tokens
from .trace import Layer as Layer, Span as Span, Trace as Trace

__version__: str
