# h3av: the two commands a newcomer needs are `make demo` and `make check`.
#
#   make demo      install packages, build, generate a clip with the built-in model
#   make check     install packages, build (gcc, sanitizers, clang), run all tests
#   make           build only (build/release)
#   make install   PREFIX=/usr/local
#   make mutations deliberate wrong turns; each must make a golden fail (slow)
#   make fuzz      libFuzzer targets (clang); corpora replay in `make check`

PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
BUILD = build/release
PROMPT ?= a red circle moves left to right with a low tone

.PHONY: all build demo check check-release check-dev check-clang install clean format mutations fuzz deps deps-check

all: build

deps:
	@tools/install-deps.sh run

deps-check:
	@tools/install-deps.sh check

build: deps
	@cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=$(PREFIX) >/dev/null
	@cmake --build $(BUILD) -j $(JOBS)

demo: build
	$(BUILD)/h3av generate -p "$(PROMPT)" -o demo.mp4
	@echo "demo.mp4 is ready"

check: deps-check check-release check-dev check-clang check-web

check-release: deps-check
	cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=$(PREFIX) >/dev/null
	cmake --build $(BUILD) -j $(JOBS)
	cmake --build $(BUILD) -j $(JOBS) --target h3av-golden
	OMP_WAIT_POLICY=passive ctest --test-dir $(BUILD) --output-on-failure -j 2

check-dev: deps-check
	cmake -S . -B build/dev -G Ninja -DCMAKE_BUILD_TYPE=Debug -DH3_SANITIZE=ON >/dev/null
	cmake --build build/dev -j $(JOBS)
	cmake --build build/dev -j $(JOBS) --target h3av-golden
	OMP_WAIT_POLICY=passive ctest --test-dir build/dev --output-on-failure -j 2

check-clang: deps-check
	cmake -S . -B build/clang -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER=clang >/dev/null
	cmake --build build/clang -j $(JOBS)

install: build
	cmake --install $(BUILD)

mutations: build
	tests/mutations.sh

format:
	clang-format -i $$(git ls-files '*.c' '*.h' | grep -v unicode_tables)

clean:
	rm -rf build demo.mp4
