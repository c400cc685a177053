# SPDX-License-Identifier: Apache-2.0
# tune. `make help` lists the targets; CC=clang, FLAVOUR=debug|san|tsan, ONEDNN=0, GLPK=0, MPI=0|1 and DEV=1 (warnings are errors) change the build; TILES=emulated runs AMX's code on AVX512_BF16; SETS=runnable builds what this processor runs.
FLAVOUR ?= release
PREFIX ?= /usr/local
# VERSION: the version and its date. The manual page shows that date, so it does not depend on the day of the build.
VERSION := $(shell sed -n 1p VERSION)$(shell git describe --always --dirty --exclude '*' 2>/dev/null | sed 's/^/-g/')
RELEASED := $(shell sed -n 2p VERSION)
SYSTEM := $(shell uname -s)
MACHINE := $(shell uname -m)
PROCESSORS := $(shell getconf _NPROCESSORS_ONLN)
PARALLEL = $(if $(filter -j%,$(MAKEFLAGS)),,-j$(PROCESSORS))
# Variables that call programs are expanded once (:=), since a recursive variable would call the program for each of 600 objects.
compiles = $(shell printf '\043include <$(1)>' | $(CC) $(2) -x c -fsyntax-only - 2>/dev/null && echo 1 || echo 0)
ifndef ONEDNN
ONEDNN := $(call compiles,oneapi/dnnl/dnnl.h)
endif
ifndef GLPK
GLPK := $(call compiles,glpk.h)
endif
ISA_avx512 := -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512
# Loops of matrix products run 5 % slower if they are misaligned by a quarter of a cache line.
ISA_avx512_bf16 := $(ISA_avx512) -mavx512bf16 -mprfchw -falign-loops=64
ISA_amx := $(ISA_avx512_bf16) -mamx-tile -mamx-bf16
ifdef TILES
TILES_KIND := $(if $(filter 0,$(TILES)),-no-tiles)$(if $(filter emulated,$(TILES)),-emulated)
HAVE_TILES := $(if $(filter 0,$(TILES)),0,1)
else
HAVE_TILES := $(if $(filter x86_64 amd64,$(MACHINE)),$(call compiles,immintrin.h,$(ISA_amx)),0)
endif
# SETS=runnable leaves out the instruction sets that this processor does not support, since a sanitizer checks only code that runs.
HAVE_AVX512 := 1
ISA_avx2_vnni := -mavx2 -mfma -mf16c -mavxvnni
ISA_avx512_vnni := $(ISA_avx512) -mavx512vnni
HAVE_VNNI := $(if $(filter x86_64 amd64,$(MACHINE)),$(call compiles,immintrin.h,$(ISA_avx2_vnni) -mavx512vnni),0)
ifeq ($(SETS),runnable)
FEATURES := $(shell grep -m1 ^flags /proc/cpuinfo)
HAVE_AVX512 := $(if $(filter avx512dq,$(FEATURES)),1,0)
HAVE_TILES := $(if $(filter avx512_bf16,$(FEATURES)),$(HAVE_TILES),0)
HAVE_VNNI := $(if $(filter avx_vnni avx512_vnni,$(FEATURES)),$(HAVE_VNNI),0)
endif
BUILD := build/$(FLAVOUR)$(if $(findstring clang,$(CC)),-clang)$(if $(SETS),-$(SETS))$(if $(filter 0,$(ONEDNN)),-no-onednn)$(if $(filter 0,$(GLPK)),-no-glpk)$(TILES_KIND)

# Packages: the required ones, then the optional ones, with the names of all systems.
PKGS := libedit yaml-0.1 jansson libpcre2-8 libutf8proc zlib libzstd libxxhash libcurl
# Only lib/serve reads its headers.
SERVE_PKG := libmicrohttpd
APT  := build-essential pkg-config libyaml-dev libjansson-dev libpcre2-dev libutf8proc-dev zlib1g-dev libzstd-dev libsnappy-dev libxxhash-dev libcurl4-openssl-dev libmicrohttpd-dev libcmocka-dev libedit-dev libopenblas0-openmp
DNF  := gcc make pkgconf-pkg-config libyaml-devel jansson-devel pcre2-devel utf8proc-devel zlib-devel libzstd-devel snappy-devel xxhash-devel libcurl-devel libmicrohttpd-devel libcmocka-devel libedit-devel openblas-openmp
BREW := pkg-config libyaml jansson pcre2 utf8proc zlib zstd snappy xxhash curl libmicrohttpd cmocka openblas libomp libedit
APT_WANTED := libdnnl-dev libglpk-dev libopenmpi-dev openmpi-bin libmpich-dev mpich
DNF_WANTED := onednn-devel glpk-devel openmpi-devel mpich-devel
BREW_WANTED := onednn glpk open-mpi

# One plug-in for each MPI library that pkg-config knows; the program itself links none. MPI=0: no plug-in; MPI=1: none is an error.
MPI_KNOWN := $(if $(filter 0,$(MPI)),,$(foreach library,openmpi:ompi-c mpich:mpich,$(if $(shell pkg-config --exists $(lastword $(subst :, ,$(library))) 2>/dev/null && echo 1),$(library))))
$(if $(filter 1,$(MPI)),$(if $(MPI_KNOWN),,$(error MPI=1, but pkg-config knows neither ompi-c nor mpich: make deps)))

OPENMP := -fopenmp
ifeq ($(SYSTEM),Darwin)
BREWED := $(shell brew --prefix 2>/dev/null)
export PKG_CONFIG_PATH := $(BREWED)/opt/curl/lib/pkgconfig:$(BREWED)/opt/zlib/lib/pkgconfig:$(PKG_CONFIG_PATH)
OPENMP := -Xpreprocessor -fopenmp
SYSTEM_FLAGS := -I$(BREWED)/opt/libomp/include -I$(BREWED)/include
SYSTEM_LIBS := -L$(BREWED)/opt/libomp/lib -lomp -L$(BREWED)/lib
endif

# clang does not vectorize every loop marked `omp simd` on every processor; this is not an error.
WARNINGS := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wundef -Wdouble-promotion $(if $(findstring clang,$(CC)),-Wno-pass-failed) $(if $(DEV),-Werror)
TUNE_CPPFLAGS := -I. -D_GNU_SOURCE -DHAVE_ONEDNN=$(ONEDNN) -DHAVE_GLPK=$(GLPK) -DHAVE_TILES=$(HAVE_TILES) $(if $(filter -emulated,$(TILES_KIND)),-DTILES_EMULATED) $(SYSTEM_FLAGS) $(shell pkg-config --cflags $(PKGS) 2>/dev/null) $(CPPFLAGS)
# Hardening at run time: stops writes past the end of an object, overwritten stacks and stacks that skip their guard page, returns and jumps to
# invalid targets, and writes to tables of functions. docs/lab/performance.md has its cost.
accepts = $(shell echo | $(CC) -Werror $(1) -x c -fsyntax-only - 2>/dev/null && echo $(1))
BRANCHES := $(if $(filter x86_64 amd64,$(MACHINE)),-fcf-protection=full,$(if $(filter aarch64 arm64,$(MACHINE)),-mbranch-protection=standard))
STACK_CLASH := $(call accepts,-fstack-clash-protection)
HARDENING := -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2 -fstack-protector-strong $(STACK_CLASH) $(call accepts,$(BRANCHES))
HARDENED := $(if $(filter Darwin,$(SYSTEM)),,-Wl,-z,relro -Wl,-z,now)
# Sanitizer reports need only line numbers; with types and variables gcc takes a quarter longer.
FLAGS_release := -O2 -g1 $(HARDENING)
FLAGS_debug := -O0 -g -DTUNE_POISON
FLAGS_san := -O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all -DTUNE_POISON
FLAGS_tsan := -O1 -g1 -fsanitize=thread
FLAGS_fuzz := -O1 -g -fsanitize=fuzzer-no-link,address,undefined -DTUNE_POISON
# Kernels are compiled without stack checks: their callers check all lengths, and their blocks on the stack have fixed sizes.
KERNEL_release := -O3 -fno-stack-protector $(if $(STACK_CLASH),-fno-stack-clash-protection)
# Tests link the shared library, the programs the static one. No test replaces its functions, so calls within it stay direct.
BASE_CFLAGS := -std=c11 $(WARNINGS) $(OPENMP) -fPIC -fno-semantic-interposition -ffile-prefix-map=$(CURDIR)=. $(FLAGS_$(FLAVOUR)) $(CFLAGS)
# ccache, if installed, avoids compiling a file again that was compiled before in any checkout.
COMPILE := $(shell command -v ccache) $(CC) $(BASE_CFLAGS)
export CCACHE_BASEDIR := $(CURDIR)
LIBS := $(shell pkg-config --libs $(PKGS) $(SERVE_PKG) 2>/dev/null) $(SYSTEM_LIBS) $(if $(filter 1,$(ONEDNN)),-ldnnl) $(if $(filter 1,$(GLPK)),-lglpk) -lsnappy -ldl -lm

# The folder of a file in lib/tensor/cpu decides how it is compiled: simd/ once for each instruction set, chosen at run time; tile/ for the sets that multiply bf16, if the compiler supports them; host/, which detects the processor, without any set.
ISAS := base $(if $(filter x86_64 amd64,$(MACHINE)),avx2 $(if $(filter 1,$(HAVE_AVX512)),avx512)) $(if $(filter 1,$(HAVE_TILES)),avx512_bf16)
# On x86 the base set is for processors before 2013: it must be correct, not fast.
ISA_base := $(if $(and $(filter release,$(FLAVOUR)),$(filter x86_64 amd64,$(MACHINE))),-O2)
ISA_avx2 := -mavx2 -mfma -mf16c
# Products of codes of 8 bits are also compiled for processors with VNNI, and for a test with its instruction as plain C.
VNNI := $(if $(filter 1,$(HAVE_VNNI)),avx2_vnni $(if $(filter 1,$(HAVE_AVX512)),avx512_vnni))
ISA_emulated := $(if $(filter x86_64 amd64,$(MACHINE)),$(ISA_avx2) -DVNNI_EMULATED)
BYTES := lib/tensor/cpu/simd/code_lanes.c lib/tensor/cpu/simd/int8_product.c
HOST := $(wildcard lib/tensor/cpu/host/*.c)
TILED := $(wildcard lib/tensor/cpu/tile/*.c)
KERNELS := $(wildcard lib/tensor/cpu/simd/*.c)
SOURCES := $(wildcard lib/*/*.c lib/model/*/*.c lib/deploy/*/*.c lib/tensor/ref/*.c lib/tensor/quant/*.c data/*.c data/*/*.c sft/*.c rl/*.c rl/*/*.c) $(HOST)
OBJECTS := $(SOURCES:%.c=$(BUILD)/%.o) $(foreach isa,$(ISAS),$(KERNELS:%.c=$(BUILD)/%.$(isa).o)) $(foreach isa,$(VNNI),$(BYTES:%.c=$(BUILD)/%.$(isa).o)) $(if $(filter 1,$(HAVE_TILES)),$(foreach isa,avx512_bf16 amx,$(TILED:%.c=$(BUILD)/%.$(isa).o)))
COMMANDS := $(patsubst %.c,$(BUILD)/%.o,$(filter-out cmd/bench/%,$(wildcard cmd/*/*.c)))
BENCHES := $(patsubst %.c,$(BUILD)/%.o,$(wildcard cmd/bench/*.c))
# Tests are found by name. tests/support has their common parts.
TESTS := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/*/test_*.c tests/*/*/test_*.c tests/fuzz/fuzz_*.c))
CASES := $(wildcard tests/cli/*.case)
# Cases that run tune-bench, which is built only for them.
MEASURES := $(shell grep -l 'TUNE-bench' $(CASES))
SCRIPTS := tests/cli/resume.sh tests/cli/self_test.sh tests/cli/faults.sh tests/cli/serve_clients.sh tests/cli/serve_load.sh tests/cli/serve_page.sh tests/cli/ranks.sh tests/mpi/two_hosts.sh tests/mpi/slurm.sh
named = $(or $(strip $(filter %/$(1),$(TESTS)) $(filter tests/$(1).case,$(CASES)) $(filter tests/$(1).sh,$(SCRIPTS))),$(error no test is called $(1): they are test_NAME, fuzz_NAME and cli/NAME))
# The tests that each flavour runs in CI (its duty); `make test-all` runs all tests in all flavours.
# - san: all test programs, and the cases that neither train nor measure (doctor measures too): the programs cover training, and measuring peak
#   speeds takes minutes.
# - tsan: the programs that start threads other than OpenMP's, or share more than the rows of a loop with them.
# - clang without oneDNN: clang checks all files, and compiles what runs: the tests of products, kernels, ops and log-probabilities.
TRAINS := $(shell awk -f tests/cli/trains.awk $(wildcard tests/cli/*.case))
ALL := $(TESTS) $(CASES) $(SCRIPTS)
THREADED := test_kernels test_ops test_matmul test_mlp test_logprobs_kernel test_generator test_data test_store test_filter test_reward_http test_serve test_serve_clients test_serve_forms test_reward_command test_env_command test_synth test_synth_servers test_file test_system test_comm
PORTABLE := test_matmul test_kernels test_ops test_logprobs_kernel test_generate cli/doctor
DUTY_OF := $(if $(filter san,$(FLAVOUR)),san,$(if $(filter tsan,$(FLAVOUR)),tsan,$(if $(filter 0,$(ONEDNN)),portable)))
DUTY_san = $(TESTS) $(filter-out $(TRAINS) $(MEASURES) tests/cli/doctor.case,$(CASES)) tests/cli/self_test.sh
DUTY_tsan = $(foreach name,$(THREADED),$(call named,$(name)))
DUTY_portable = $(foreach name,$(PORTABLE),$(call named,$(name)))
CHOSEN = $(if $(T),$(foreach name,$(T),$(call named,$(name))),$(if $(and $(DUTY),$(DUTY_OF)),$(DUTY_$(DUTY_OF)),$(ALL)))
# Files that only the compiler's own checks see: their warnings do not need machine code.
CHECKED = $(if $(and $(DUTY),$(filter portable,$(DUTY_OF))),$(patsubst %.c,$(BUILD)/%.checked,$(filter-out $(CHOSEN:$(BUILD)/%=%.c),$(TESTS:$(BUILD)/%=%.c) tests/support/replay.c $(wildcard cmd/bench/*.c))))
PROGRAM := $(if $(wildcard cmd/app/main.c),$(BUILD)/tune)
PLUGINS := $(foreach library,$(MPI_KNOWN),$(BUILD)/comm_$(firstword $(subst :, ,$(library))).so)

.PHONY: all always check format format-check deps test build test-built test-long test-all faults fuzz tune-bench bench bench-peers demo install uninstall layers headers quiet golden-update clean help
# Objects of tests are made on the way to their programs. Without this line they would be deleted again.
.PRECIOUS: $(BUILD)/%.o
all: $(BUILD)/libtune.a $(PROGRAM) $(PLUGINS) ## build ./tune (what plain `make` does)
	@$(foreach file,$(PROGRAM) $(PLUGINS),cmp -s $(file) $(notdir $(file)) || cp $(file) $(notdir $(file));)

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(COMPILE) $(TUNE_CPPFLAGS) -MMD -MP -c $< -o $@
$(BUILD)/%.checked: %.c
	@mkdir -p $(@D)
	$(COMPILE) $(TUNE_CPPFLAGS) -fsyntax-only -MMD -MP -MF $@.d -MT $@ $< && touch $@
# Rewritten only when the version changes, so that a commit recompiles one file and no object keeps an old version.
$(BUILD)/version: always
	@mkdir -p $(@D)
	@echo '$(VERSION) $(RELEASED)' | cmp -s - $@ || echo '$(VERSION) $(RELEASED)' > $@
$(BUILD)/cmd/app/version.o: TUNE_CPPFLAGS += -DTUNE_VERSION='"$(VERSION)"' -DTUNE_RELEASED='"$(RELEASED)"'
$(BUILD)/cmd/app/version.o: $(BUILD)/version
$(BUILD)/lib/tensor/cpu/host/%.o: TUNE_CPPFLAGS += -DHAVE_AVX512=$(HAVE_AVX512) -DHAVE_VNNI=$(HAVE_VNNI)
# A fused multiply-add gives other codes and values than the programs that define the formats.
$(BUILD)/lib/tensor/quant/%.o: TUNE_CPPFLAGS += -ffp-contract=off
SERVE_FLAGS := $(shell pkg-config --cflags $(SERVE_PKG) 2>/dev/null)
$(BUILD)/lib/serve/%.o: TUNE_CPPFLAGS += $(SERVE_FLAGS)
$(foreach isa,$(ISAS),$(BUILD)/lib/tensor/cpu/simd/codes.$(isa).o): TUNE_CPPFLAGS += -ffp-contract=off
define isa_rule
$(BUILD)/lib/tensor/cpu/%.$(1).o: lib/tensor/cpu/%.c
	@mkdir -p $$(@D)
	$$(COMPILE) $$(KERNEL_$$(FLAVOUR)) -ffp-contract=fast -fno-trapping-math -fno-math-errno $$(ISA_$(1)) -DISA=$(1) $$(TUNE_CPPFLAGS) -MMD -MP -c $$< -o $$@
endef
$(foreach isa,$(ISAS) amx avx2_vnni avx512_vnni emulated,$(eval $(call isa_rule,$(isa))))
define plugin_rule
$(BUILD)/comm_$(1).so: lib/comm/mpi/comm_mpi.c lib/comm/comm.h lib/comm/comm_plugin.h
	@mkdir -p $$(@D)
	@echo link $$@ && $(CC) $$(BASE_CFLAGS) $$(TUNE_CPPFLAGS) -shared $$(HARDENED) $$(LDFLAGS) $$< $$(shell pkg-config --cflags --libs $(2)) -o $$@
endef
$(foreach library,$(MPI_KNOWN),$(eval $(call plugin_rule,$(firstword $(subst :, ,$(library))),$(lastword $(subst :, ,$(library))))))
$(BUILD)/libtune.a: $(OBJECTS)
	@rm -f $@
	@ar rcs $@ $^
$(BUILD)/libtune.so: $(OBJECTS)
	@echo link $@ && $(CC) $(BASE_CFLAGS) -shared $(HARDENED) $(LDFLAGS) $^ $(LIBS) -o $@
$(BUILD)/tune: $(COMMANDS) $(BUILD)/libtune.a
	@echo link $@ && $(CC) $(BASE_CFLAGS) $(HARDENED) $(LDFLAGS) $^ $(LIBS) -o $@
# Both programs share the files of cmd that are not commands; tune-bench links those that it calls.
$(BUILD)/cmd/parts.a: $(filter-out $(BUILD)/cmd/app/main.o,$(COMMANDS))
	@rm -f $@
	@ar rcs $@ $^
$(BUILD)/tune-bench: $(BENCHES) $(BUILD)/cmd/parts.a $(BUILD)/libtune.a
	@echo link $@ && $(CC) $(BASE_CFLAGS) $(HARDENED) $(LDFLAGS) $^ $(LIBS) -o $@
SUPPORT := $(patsubst %.c,$(BUILD)/%.o,$(filter-out tests/support/replay.c,$(wildcard tests/support/*.c)))
link_test = @echo link $@ && $(CC) $(BASE_CFLAGS) $(LDFLAGS) $^ -Wl,-rpath,$(abspath $(BUILD)) -lcmocka $(LIBS) -o $@
# A preloaded library that makes calls fail, kills the process, and logs what a power cut would leave; and the programs of tests/cli/faults.sh.
FAULTS := $(BUILD)/fault.so $(BUILD)/fault-power $(BUILD)/fault-teacher
$(BUILD)/fault.so: $(addprefix tests/faults/,main.c alloc.c files.c journal.c shim.h)
	@mkdir -p $(@D)
	@$(CC) -std=c11 -O1 -fPIC -shared $(WARNINGS) -I. -D_GNU_SOURCE $(filter %.c,$^) -o $@
$(BUILD)/fault-%: tests/faults/%.c
	@mkdir -p $(@D)
	@$(CC) -std=c11 -O1 $(WARNINGS) -D_GNU_SOURCE $< -o $@
$(BUILD)/tests/support.a: $(SUPPORT)
	@rm -f $@
	@ar rcs $@ $^
$(BUILD)/tests/fuzz/fuzz_%: $(BUILD)/tests/fuzz/fuzz_%.o $(BUILD)/tests/support/replay.o $(BUILD)/tests/support.a $(BUILD)/libtune.so
	$(link_test)
$(BUILD)/tests/tensor/test_vnni: $(BYTES:%.c=$(BUILD)/%.emulated.o)
$(BUILD)/tests/%: $(BUILD)/tests/%.o $(BUILD)/tests/support.a $(BUILD)/libtune.so
	$(link_test)
$(BUILD)/fuzzer_%: $(BUILD)/tests/fuzz/fuzz_%.o $(BUILD)/tests/support.a $(BUILD)/libtune.a
	$(CC) $(BASE_CFLAGS) -fsanitize=fuzzer $(LDFLAGS) $^ -lcmocka $(LIBS) -o $@
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)

# OpenBLAS is loaded by the program (lib/tensor/openblas.h): the library is needed, its headers are not.
OPENBLAS_PRESENT = $(if $(filter Darwin,$(SYSTEM)),test -e $(BREWED)/opt/openblas,PATH="$$PATH:/sbin:/usr/sbin" ldconfig -p | grep -q 'libopenblaso*\.so\.0')
DEPS_PRESENT = pkg-config --exists $(PKGS) $(SERVE_PKG) cmocka 2>/dev/null && $(OPENBLAS_PRESENT) && printf '\043include <snappy-c.h>\n' | $(CC) $(TUNE_CPPFLAGS) -x c -fsyntax-only - 2>/dev/null
deps: ## install the system packages (apt, dnf or brew)
	@sudo=; [ "$$(id -u)" = 0 ] || ! command -v sudo >/dev/null || sudo=sudo; \
	if command -v apt-get >/dev/null; then export DEBIAN_FRONTEND=noninteractive; $$sudo apt-get update -q; \
	    $$sudo apt-get install -qy $(APT) $(APT_WANTED) $(EXTRA) || $$sudo apt-get install -qy $(APT) $(EXTRA); \
	elif command -v dnf >/dev/null; then $$sudo dnf install -y $(DNF) $(DNF_WANTED) $(EXTRA) || $$sudo dnf install -y $(DNF) $(EXTRA); \
	elif command -v brew >/dev/null; then brew install $(BREW) $(BREW_WANTED) || brew install $(BREW); \
	else echo "install by hand: $(APT)"; exit 1; fi
test: ## build and run all tests, or T="test_mdp cli/mdp"; FLAVOUR=san|tsan|debug for a build under sanitizers or for a debugger
	@$(DEPS_PRESENT) || $(MAKE) deps
	@$(MAKE) --no-print-directory $(PARALLEL) test-built
test-built: build
	@sh tests/run.sh $(BUILD) $(CHOSEN)
build: $(CHECKED) $(filter $(BUILD)/%,$(CHOSEN)) $(PROGRAM) $(PLUGINS) $(if $(filter $(MEASURES),$(CHOSEN)),$(BUILD)/tune-bench) $(if $(filter Linux,$(SYSTEM)),$(if $(filter release debug,$(FLAVOUR)),$(if $(filter tests/cli/faults.sh,$(CHOSEN)),$(FAULTS)))) # what the chosen tests need
test-long: ## all tests, with the long tests of learning and all their seeds (minutes more)
	@TEST_LONG=1 TEST_SECONDS=$${TEST_SECONDS:-3600} $(MAKE) --no-print-directory test
# The thread sanitizer does not know gcc's OpenMP runtime and reports races in every loop. clang's libomp supports it through the tool "archer",
# so the thread flavour is a clang build.
test-all: ## all tests in all flavours: before a release, and after a change of kernels, threads or memory
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory test FLAVOUR=san
	@$(MAKE) --no-print-directory test FLAVOUR=tsan CC=clang
	@$(MAKE) --no-print-directory test CC=clang ONEDNN=0
faults: $(PROGRAM) $(FAULTS) ## run every command that writes with a failure, kill or power cut at every point (hours); POINTS=9: nine points of each kind, S="merge lora": two scenarios
	@sh tests/faults/all.sh $(BUILD)/tune $(S)
fuzz: ## search for input that breaks a reader, SECONDS=60 NAME=json|yaml|... (needs clang)
	@$(MAKE) --no-print-directory $(PARALLEL) FLAVOUR=fuzz CC=clang build/fuzz-clang/fuzzer_$(NAME)
	@mkdir -p build/fuzz-clang/corpus_$(NAME)
	build/fuzz-clang/fuzzer_$(NAME) -max_total_time=$(or $(SECONDS),60) -artifact_prefix=tests/fuzz/$(NAME)/ build/fuzz-clang/corpus_$(NAME) tests/fuzz/$(NAME)
BENCH_DATA := ../shared/data
BENCH_ROWS := $(if $(wildcard $(BENCH_DATA)/rows/gsm8k/train.jsonl),--rows $(BENCH_DATA)/rows/gsm8k/train.jsonl --tokenizer $(BENCH_DATA)/tokenizers/smollm2-tokenizer)
tune-bench: all $(BUILD)/tune-bench ## build ./tune-bench, which measures speed
	@cmp -s $(BUILD)/tune-bench $@ || cp $(BUILD)/tune-bench $@
bench: tune-bench ## measure training, decoding and more on SHAPES="S Q L" into bench.json; sweeps over an MDP of a million states; filters on 52,002 rows; growth with rows and lengths
	./tune-bench $(or $(SHAPES),S Q L) --work $(or $(WORK),all) $(BENCH_ROWS) -o bench.json
	./tune-bench mdp
	./tune-bench filter
	./tune-bench synth
	./tune-bench growth
bench-peers: tune-bench ## measure the same jobs and PyTorch's tools of PEERS_VENV, alternating, into bench-peers.json; ONLY=REGEX selects jobs
	@[ -n "$(PEERS_VENV)" ] || { echo "PEERS_VENV: the folder of a Python environment with torch, transformers, peft, trl; docs/lab/performance.md says more"; exit 1; }
	$(PEERS_VENV)/bin/python tests/bench/bench_peers.py --tune ./tune --tune-bench ./tune-bench --peers $(or $(PEERS),../shared/peers) --only '$(ONLY)' -o bench-peers.json
	./tune-bench --table bench-peers.json
	$(PEERS_VENV)/bin/python tests/bench/bench_rouge.py --tune ./tune
demo: ## fine-tune, merge and use a tiny model; then RL with rewards, preferences, a reward model; under 5 minutes
	@$(DEPS_PRESENT) || $(MAKE) deps
	@$(MAKE) --no-print-directory $(PARALLEL) all
	@sh recipes/demo/demo.sh ./tune
# The program prints its own manual page and completions.
ROOT = '$(subst ','\'',$(DESTDIR)$(PREFIX))'
MANUAL = share/man/man1/tune.1
COMPLETIONS = share/bash-completion/completions/tune share/zsh/site-functions/_tune share/fish/vendor_completions.d/tune.fish
below_root = $(addprefix $(ROOT)/,$(1))
install: all ## install below PREFIX (/usr/local): program, plug-ins for MPI, recipes, manual page, completions of shells
	install -d $(call below_root,bin share/tune $(dir $(MANUAL) $(COMPLETIONS)))
	install -m 755 $(PROGRAM) $(ROOT)/bin/tune
	$(if $(PLUGINS),install -d $(ROOT)/libexec/tune && install -m 755 $(PLUGINS) $(ROOT)/libexec/tune)
	cp -R recipes $(ROOT)/share/tune/
	$(PROGRAM) help --man > $(ROOT)/$(MANUAL)
	$(PROGRAM) completion bash > $(ROOT)/$(word 1,$(COMPLETIONS))
	$(PROGRAM) completion zsh > $(ROOT)/$(word 2,$(COMPLETIONS))
	$(PROGRAM) completion fish > $(ROOT)/$(word 3,$(COMPLETIONS))
	chmod -R u=rwX,go=rX $(ROOT)/share/tune && chmod 644 $(call below_root,$(MANUAL) $(COMPLETIONS))
uninstall: ## remove the files that install has installed
	rm -f $(call below_root,bin/tune $(MANUAL) $(COMPLETIONS))
	rm -rf $(ROOT)/share/tune $(ROOT)/libexec/tune
check: all ## check the rules (layers, headers, quiet, format) and run the tests of files changed since the last commit, within 60 seconds; lists the tests it left out
	@MAKE="$(MAKE)" sh tests/check.sh $(BUILD) $(TESTS) $(CASES)
C_FILES = $(shell git ls-files -co --exclude-standard '*.c' '*.h')
format: ## format all C files (clang-format 14)
	@clang-format -i $(C_FILES)
format-check: ## check the format of all C files; tables with their own layout are marked with `clang-format off`
	@sh tests/lint.sh format $(C_FILES)
compile_commands.json: always ## for clangd and other tools that read C
	@$(MAKE) --no-print-directory -Bnk all $(TESTS) 2>/dev/null | sh tests/compile_commands.sh > $@.new && mv $@.new $@
layers: ## check that files include only their own folder or a lower one, cite only existing documents, name their licence, and have no overlong lines
	@sh tests/lint.sh layers
headers: ## check that each header compiles alone
	@CC="$(CC)" sh tests/lint.sh headers $(TUNE_CPPFLAGS) -std=c11 $(WARNINGS) -Werror
quiet: $(BUILD)/libtune.a ## check that the library never prints, exits or reads the environment
	@sh tests/lint.sh quiet $<
golden-update: tune-bench ## rewrite the expected output of tests/cli and show the difference
	@sh tests/cli/run.sh --update ./tune tests/cli/*.case; git --no-pager diff --stat -p -- tests/cli
clean: ## remove all build outputs
	rm -rf build tune tune-bench comm_openmpi.so comm_mpich.so
help: ## this list
	@awk -F': .*## |:## ' '/^[a-z_.-]+:.*## /{printf "make %-22s %s\n", $$1, $$2}' Makefile
