# h3av: the two commands a newcomer needs are `make demo` and `make check`.
#
#   make demo      install packages, build, generate a clip with the built-in model
#   make check     install packages, build with gcc and clang, run the tests, those of the server
#                  and of its page in Chromium too where Python and Chromium can be had
#   make check-all also the tests under ASan and UBSan, and the CUDA build
#   make           build only: build/release/h3av, with CUDA where nvcc is
#   make install   PREFIX=/usr/local
#   make mutations deliberate wrong turns; each must make a golden fail (slow)
#   make fuzz      libFuzzer targets (clang); corpora replay in `make check`

PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
BUILD = build/release
PROMPT ?= a large red circle moves from left to right on a white background with a low tone

.PHONY: all build demo check check-all check-release check-dev check-clang check-cuda check-server check-web install clean format mutations fuzz deps deps-check

all: build

deps:
	@tools/install-deps.sh run

deps-check:
	@tools/install-deps.sh check

build: deps
	@cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=$(PREFIX) >/dev/null
	@cmake --build $(BUILD) -j $(JOBS) --target h3av man

# Without the CUDA kernels, which take nvcc minutes, and without the tests; `make check` builds on from there.
demo: deps
	@cmake -S . -B build/check -G Ninja -DCMAKE_BUILD_TYPE=Release -DH3_CUDA=OFF >/dev/null
	@cmake --build build/check -j $(JOBS) --target h3av
	build/check/h3av generate -p "$(PROMPT)" -o demo.mp4
	@echo "demo.mp4 is ready"

check: deps-check check-release check-clang check-server check-web

# Longer: the same tests under ASan and UBSan, and the CUDA backend where nvcc is (its tests need a
# GPU and say so when there is none).
check-all: check check-dev check-cuda

check-release: deps-check
	cmake -S . -B build/check -G Ninja -DCMAKE_BUILD_TYPE=Release -DH3_CUDA=OFF >/dev/null
	cmake --build build/check -j $(JOBS)
	@tests/sweep.sh
	OMP_WAIT_POLICY=passive ctest --test-dir build/check --output-on-failure --timeout 5000 -j 2

check-dev: deps-check
	cmake -S . -B build/dev -G Ninja -DCMAKE_BUILD_TYPE=Debug -DH3_SANITIZE=ON -DH3_CUDA=OFF >/dev/null
	cmake --build build/dev -j $(JOBS)
	@tests/sweep.sh
	OMP_WAIT_POLICY=passive ctest --test-dir build/dev --output-on-failure --timeout 5000 -j 2

check-clang: deps-check
	cmake -S . -B build/clang -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER=clang -DH3_CUDA=OFF >/dev/null
	cmake --build build/clang -j $(JOBS)

check-cuda: deps-check
	@if command -v nvcc >/dev/null; then \
	    cmake -S . -B build/cuda -G Ninja -DCMAKE_BUILD_TYPE=Release -DH3_CUDA_ARCH=90 >/dev/null && \
	    cmake --build build/cuda -j $(JOBS) --target h3av h3av-golden; \
	else echo "no nvcc: the CUDA backend is not built"; fi

# The server with the real openai client; the page in a real browser. 77: cannot be run here (no
# Python packages, no browser); said by the scripts.
check-server: check-release
	@tests/server/run.sh build/check/h3av || [ $$? = 77 ]

check-web: check-release
	@tests/server/web.sh build/check/h3av || [ $$? = 77 ]

install: build
	cmake --install $(BUILD)

mutations: deps-check
	tests/mutations.sh

# Then build/fuzz/fuzz_gguf CORPUS tests/data/formats/hostile, and so on: each runs until it finds something.
fuzz: deps-check
	cmake -S . -B build/fuzz -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_COMPILER=clang \
	    -DCMAKE_C_FLAGS=-fsanitize=fuzzer-no-link -DH3_FUZZ=ON -DH3_SANITIZE=ON -DH3_CUDA=OFF >/dev/null
	cmake --build build/fuzz -j $(JOBS) --target fuzzers

format:
	clang-format -i $$(git ls-files '*.c' '*.h' | grep -v unicode_tables)

clean:
	rm -rf build demo.mp4
