"""llama-server, as the wheel xllamacpp has it: llama_server.py MODEL.gguf PORT [SLOTS [CONTEXT [THREADS]]].

CONTEXT is that of all slots together.
"""

import sys
import threading

import xllamacpp

slots, context, threads = (int(text) for text in (sys.argv[3:] + ["2", "32768", "0"][len(sys.argv[3:]) :]))
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.port = int(sys.argv[2])
params.n_ctx = context
params.n_parallel = slots
if threads:
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
server = xllamacpp.Server(params)
print("ready", flush=True)
threading.Event().wait()
