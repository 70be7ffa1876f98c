"""llama-server, as the wheel xllamacpp has it: llama_server.py MODEL.gguf PORT."""

import sys
import threading

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.port = int(sys.argv[2])
params.n_ctx = 32768
params.n_parallel = 2
server = xllamacpp.Server(params)
print("ready", flush=True)
threading.Event().wait()
