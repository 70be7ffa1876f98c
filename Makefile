# `make demo` and `make test` are all that a newcomer needs. Everything is built with the release
# profile, so that llama.cpp is built once. CARGO_TARGET_DIR is kept if it is set.
#
#   make demo ARGS="--compare"          arguments for `tandem demo`
#   make demo FEATURES=cuda             a GPU backend: cuda, vulkan (Metal is on by itself)

#   make test-peers PEERS="dynamo_prefills_and_decodes_behind_one_address"   one of the tests beside real peers

SHELL := bash
CARGO ?= cargo
FEATURE_FLAGS := $(if $(FEATURES),--features tandem-cli/$(FEATURES))
FLAGS := --release --workspace $(FEATURE_FLAGS)

# RUSTFLAGS replaces the flags of .cargo/config.toml, which name the CPU.
ifneq ($(RUSTFLAGS),)
ifeq ($(findstring target-cpu,$(RUSTFLAGS)),)
$(warning RUSTFLAGS is set and replaces target-cpu=native: llama.cpp will be slow; add -C target-cpu=native to it)
endif
endif

.PHONY: demo build check test test-peers

demo:
	@scripts/install-deps.sh build
	$(CARGO) run --release --package tandem-cli $(FEATURE_FLAGS) -- demo $(ARGS)

build:
	@scripts/install-deps.sh build
	$(CARGO) build $(FLAGS)

check:
	@scripts/install-deps.sh build
	$(CARGO) xtask check

# The last lines are the summary of the test runner; the documentation's examples come before it.
test:
	@scripts/install-deps.sh test
	$(CARGO) xtask check
	$(CARGO) test --quiet $(FLAGS) --doc
	@if $(CARGO) nextest --version >/dev/null 2>&1; then \
		echo "$(CARGO) nextest run $(FLAGS)"; \
		$(CARGO) nextest run $(FLAGS); \
	else \
		echo "$(CARGO) test $(FLAGS) --lib --bins --tests"; \
		$(CARGO) test $(FLAGS) --lib --bins --tests; \
	fi

# Beside servers and clients of others, which are installed from PyPI into environments of their own, once.
test-peers:
	@scripts/install-deps.sh test
	$(CARGO) build --release --package tandem-cli $(FEATURE_FLAGS)
	@scripts/peers/run.sh "$$($(CARGO) metadata --format-version 1 --no-deps | \
		python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')/release/tandem" $(PEERS)
