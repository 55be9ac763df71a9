# weightcast: `make demo` shows it, `make test` proves it. `make help` lists the rest.
JOBS ?= $(shell nproc)
# TORCH=1: the Python tests that need torch run too.
PYTHON_TOOLS := --python $(if $(TORCH),--torch)
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# What takes minutes and matters to transports alone: further orders of the fake device's copies, and 4 GB and more.
LARGE := BigTest\.(FiveGigabytes|MoreThan32BitsCount)
MOST := -LE '^seeds$$' -E '$(LARGE)'
# What `make test` leaves to `make test-all`: faults, floods, long searches, processes that run alone.
SLOW := $(LARGE)|^(Faults|Security|Explain|Soak|Model|Mistake|FakeCuda)\.|^contract_.*_seed_|MachineRandom|AHundredOver|EndpointLeaks|BigTest|AMatrixOfSeveral
.PHONY: help demo binary build install test test-all test-cpp test-seeds test-rdma test-python test-page test-engines sanitize model soak-protocol soak-device soak-data storm rl bench wheel test-wheel lint tidy format docs fuzz clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

demo: binary ## moves a GPT-2's weights from 2 trainers to 2 inference engines, bit-exact
	@build/weightcast demo

binary: ## build/weightcast
	@scripts/bootstrap
	@[ -f build/release/build.ninja ] || cmake --preset release
	@cmake --build --preset release -j$(JOBS) --target weightcast

build: binary .venv/.weightcast-built ## the binary, and .venv with the Python package (TORCH=1: and with PyTorch)
	@$(if $(TORCH),scripts/bootstrap $(PYTHON_TOOLS))

# CXX as CMake names it: ccache then knows the files from the build of the binary.
.venv/.weightcast-built: $(shell git ls-files src include python cmake pyproject.toml CMakeLists.txt 2>/dev/null)
	@scripts/bootstrap $(PYTHON_TOOLS)
	@echo "building the Python package, some minutes the first time"
	@CXX=$${CXX:-c++} .venv/bin/pip install -q --disable-pip-version-check --no-build-isolation --no-deps .
	@ln -sfn ../../build/weightcast .venv/bin/weightcast
	@touch $@

install: binary ## binary, headers and libraries for C++ programs, into PREFIX (/usr/local)
	@cmake --build --preset release -j$(JOBS)
	@cmake --install build/release --strip --prefix $(or $(PREFIX),/usr/local)

# Not by its own name: `make -n` would run that line.
BUILD = $(MAKE) --no-print-directory build
# While the tests of C++ wait for time-outs, what those of Python need is compiled.
test: ## before a commit: most tests of C++ and of Python, within 20 minutes of a clone on two cores
	@scripts/bootstrap --dev $(PYTHON_TOOLS)
	@[ -f build/debug/build.ninja ] || cmake --preset debug
	@cmake --build --preset debug -j$(JOBS) --target quick
	@setsid nice -n 19 $(BUILD) >build/build.log 2>&1 & trap "kill -- -$$! 2>/dev/null || :" EXIT; \
	ctest --test-dir build/debug --output-on-failure --no-tests=error -j$(JOBS) -LE '^seeds$$' -E '$(SLOW)'; \
	wait $$! || { cat build/build.log; exit 1; }
	@$(MAKE) --no-print-directory test-python QUICK=1

test-all: test-cpp test-rdma test-python ## everything: C++ with ctest, RDMA in an emulated machine, Python with pytest (TORCH=1)

# JOBS says how much goes on at once; two of these in one build folder would be in each other's way.
.NOTPARALLEL:

test-cpp:
	@scripts/bootstrap --dev
	@[ -f build/debug/build.ninja ] || cmake --preset debug
	@cmake --build --preset debug -j$(JOBS)
	@ctest --test-dir build/debug --output-on-failure --no-tests=error -j$(JOBS) $(MOST)

test-seeds: ## the contract with 4 GB and more, and over device memory in more orders of the fake device's copies (after test-cpp)
	@ctest --test-dir build/debug --output-on-failure --no-tests=error -j$(JOBS) -R '$(LARGE)'
	@ctest --test-dir build/debug --output-on-failure --no-tests=error -j$(JOBS) -L '^seeds$$'

test-rdma: ## verbs between soft-RoCE devices, in an emulated machine
	@scripts/bootstrap --dev
	@[ -f build/debug/build.ninja ] || cmake --preset debug
	@cmake --build --preset debug -j$(JOBS) --target contract weightcast rdma_rails
	@tests/rdma/test

# Several files at once, the tests of one in their order. pytest exits with 5 when
# it ran nothing: a failure like any other.
test-python: build
	@.venv/bin/python -m pytest tests/python -q -n $$(($(JOBS) < 4 ? $(JOBS) : 4)) --dist loadfile \
	  $(if $(QUICK),-m "not training and not slow",$(if $(TRAINING),-m "$(if $(filter only,$(TRAINING)),training,not training)"))

test-page: binary ## the live page in headless Chromium, in an environment of its own (SCREENSHOTS=docs/images renews those of the docs)
	@scripts/bootstrap --page
	@tests/page/environment
	@WC_TEST_BINARY=$(CURDIR)/build/weightcast .engines/page/bin/python -m pytest tests/page -q -c tests/page/pytest.ini

ENGINES := $(or $(ENGINE),vllm sglang trl)
test-engines: build ## real inference engines from PyPI, in environments of their own (LONG=1: all, LONG=only: what takes longer; ENGINE=vllm, sglang or trl for one; VERSION=0.29.0: an older vLLM)
	@for engine in $(ENGINES); do \
	  tests/engines/environment $$engine $(VERSION) || exit 1; \
	  $(if $(VERSION),PYTHONPATH=$(CURDIR)/.engines/$$engine-$(VERSION) ENGINE_VERSION=$(VERSION)) \
	  .engines/$$engine/bin/python -m pytest $$(ls tests/engines/test_$${engine}*.py) -q $(if $(filter only,$(LONG)),-m long,$(if $(LONG),,-m "not long")) \
	    --rootdir tests/engines -c tests/engines/pytest.ini || exit 1; \
	done

sanitize: ## the C++ tests under ASan+UBSan and under TSan
	@scripts/bootstrap --dev
	@for preset in asan tsan; do \
	  [ -f build/$$preset/build.ninja ] || cmake --preset $$preset; \
	  cmake --build --preset $$preset -j$(JOBS); \
	  TSAN_OPTIONS=ignore_noninstrumented_modules=1 \
	  ctest --test-dir build/$$preset --output-on-failure --no-tests=error -j$(JOBS) $(MOST); \
	done

rl: ## trainers teach a small model to sort, engines generate with what they get (SEEDS=0,1,2; RAY=1: as actors of Ray; about 2 minutes each)
	@scripts/bootstrap --torch
	@$(MAKE) --no-print-directory build TORCH=1
	@.venv/bin/python scripts/learn_to_sort.py --seeds $(or $(SEEDS),0) $(if $(RAY),--ray)

soak-protocol: ## a thousand random faults in small clusters, at most an hour (FAULTS=1000)
	@scripts/bootstrap --dev
	@[ -f build/debug/build.ninja ] || cmake --preset debug
	@cmake --build --preset debug -j$(JOBS) --target soak_protocol
	@build/debug/tests/soak/soak_protocol --faults $${FAULTS:-1000} --clusters 3
	@build/debug/tests/soak/soak_protocol --repairs $${REPAIRS:-50}

soak-device: ## five hundred random faults in small clusters whose weights lie in device memory, on the fake driver (FAULTS=500)
	@scripts/bootstrap --dev
	@[ -f build/debug/build.ninja ] || cmake --preset debug
	@cmake --build --preset debug -j$(JOBS) --target soak_protocol fake_gpu
	@build/debug/tests/soak/soak_protocol --faults $${FAULTS:-500} --memory device
	@build/debug/tests/soak/soak_protocol --faults $$(( $${FAULTS:-500} / 5 )) --memory mixed

soak-data: ## a thousand random faults under transfers between pairs of processes, at most an hour (FAULTS=1000)
	@scripts/bootstrap --dev
	@[ -f build/debug/build.ninja ] || cmake --preset debug
	@cmake --build --preset debug -j$(JOBS) --target soak_data
	@build/debug/tests/soak/soak_data --faults $${FAULTS:-1000}

storm: binary ## half an hour of random faults under commands that a supervisor starts again (MINUTES=30; needs root)
	@WC_TEST_BINARY=$(CURDIR)/build/weightcast tests/faults/storm.py --minutes $${MINUTES:-30}

model: ## the model checker's long search: over 10 million states (MODEL_STATES for each configuration)
	@scripts/bootstrap --dev
	@[ -f build/debug/build.ninja ] || cmake --preset debug
	@cmake --build --preset debug -j$(JOBS) --target model_checker
	@faults="kills=1 restarts=1 stops=1 controller=1 timeouts=1 paths=1"; \
	for config in $$(build/debug/tests/model/model_checker list); do \
	  case $$config in \
	    in_place*|shadow*|pull_in_place*|pull_shadow*) more= ;; \
	    deep*|wide*|pull_deep*|pull_wide*) more="$$faults" ;; \
	    *) more="search=departures $$faults" ;; \
	  esac; \
	  build/debug/tests/model/model_checker $$config $$more states=$${MODEL_STATES:-1400000} live_every=64 walks=200 progress; \
	done

bench: build ## measures this machine: transfers beside its peers, updates, planning, connecting, registering
	@bench/side_by_side.py
	@build/weightcast bench p2p
	@build/weightcast bench floor
	@bench/update_side_by_side.py
	@build/weightcast bench update
	@build/weightcast bench plan
	@build/weightcast bench connect
	@build/weightcast bench register
	@.venv/bin/python bench/idle_endpoint.py
	@bench/figures.py

fuzz: ## each fuzz target for FUZZ_SECONDS (60)
	@scripts/bootstrap --dev
	@scripts/fuzz $${FUZZ_SECONDS:-60}

wheel: binary ## dist/: wheels with extension and binary, for the stable ABI and for each older Python found (WHEEL_PYTHON=3.12: only that)
	@scripts/bootstrap $(PYTHON_TOOLS)
	@scripts/make_wheels.py $(if $(WHEEL_PYTHON),--python $(WHEEL_PYTHON))
	@scripts/check_wheel.py dist/weightcast-*.whl

test-wheel: wheel ## installs the wheels into empty environments and runs what is in them
	@.venv/bin/python -m pytest tests/wheel -q

lint: ## formatting, layering, plain words, headers that compile alone, ruff
	@scripts/bootstrap --dev $(PYTHON_TOOLS)
	@scripts/lint

tidy: ## clang-tidy over the sources (slow)
	@scripts/bootstrap --dev
	@scripts/tidy

format: ## rewrites C++ and Python in the project's style
	@git ls-files '*.h' '*.cc' | xargs clang-format-19 -i
	@.venv/bin/ruff format python tests examples scripts bench

docs: binary ## docs/settings.md from the table of settings, declarations in docs/api.md
	@build/weightcast info --settings-markdown > docs/settings.md
	@scripts/api_page.py

clean: ## removes what was built
	@rm -rf build dist .venv
