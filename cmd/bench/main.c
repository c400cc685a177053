/* SPDX-License-Identifier: Apache-2.0 */
/* The program tune-bench: benchmarks of models, chosen by --work, and other benchmarks, chosen by the first argument. */
#include <stdlib.h>
#include <string.h>

#include "cmd/app/app.h"
#include "cmd/app/ranks.h"
#include "cmd/app/terminal.h"
#include "cmd/bench/bench.h"

const char program_name[] = "tune-bench";

/* most: the largest number of arguments, including the word itself */
static const struct {
    const char *word;
    size_t most;
    Status (*run)(const Command *command);
} words[] = {
    {"mlp", 1, bench_mlp},       {"ppo", 1, bench_ppo},   {"filter", 1, bench_filter}, {"synth", 2, bench_synth},
    {"growth", 1, bench_growth}, {"comm", 1, bench_comm}, {"codes", 2, bench_codes},   {"experts", 2, bench_experts},
};

static Status measure(const Command *command, void *context) {
    const BenchJob *job = context;
    if (job->table) return bench_table(job->table);
    TRY(command_needs(command, 1, COUNT_OF(command->arguments)));
    const char *first = command->arguments[0];
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        if (strcmp(first, words[i].word) != 0) continue;
        TRY(command_needs(command, 1, words[i].most));
        return words[i].run(command);
    }
    if (!strcmp(first, "mdp"))
        return status_hint(status_fail(ST_USAGE, "'mdp' must be the first argument, before its options"), "tune-bench mdp --help lists them");
    return bench_models(command, job);
}

static Status bench(int argc, char **argv) {
    BenchJob job = {.list = "sft,prefill,decode,load", .compute = "auto", .checkpointing = "none", .steps = 2};
    Command command = {
        .arguments_help =
            "MODEL ... | S | Q | L | mlp | ppo | filter | synth [MODEL] | growth | comm | codes [FORMAT] | experts [TOKENS] | mdp [FILE|ENV]",
        .help =
            "Measures training and use of a model, or of random weights in the shape of SmolLM2-135M (S), Qwen2.5-0.5B (Q) or Llama-3.2-1B (L);\n"
            "growth: growth of time and memory with the length of a row, the number of rows and the number of steps;\n"
            "mlp: acting with and training of a policy with two hidden layers of 64;\n"
            "ppo: steps per second of PPO on CartPole, with the settings of stable-baselines3 and cleanrl;\n"
            "filter: ROUGE-L and all text filters on 52,002 instructions;\n"
            "synth: tokens per second of tune data synth, compared with plain generation of the same answers, and the time of the filters;\n"
            "comm: sums and copies between the ranks that mpirun or srun started, by each row of parallel.reduce;\n"
            "codes: products of 1, 8 and 512 tokens with a weight in each quantised format, and in f32 and bf16;\n"
            "experts: products of a layer of 128 experts, compared with a dense layer of as many operations, and the weights that decoding reads;\n"
            "mdp: sweeps and solutions of an MDP; it has its own options, see mdp --help.\n"
            "GF/s count the operations of matrix products, computed from the shapes of all ops (--profile shows each op); the share is of the highest rate measured on this machine. GB/s count the weights, keys and values "
            "that decoding reads; the share is of the memory bandwidth. Each work runs in its own process. --json: one object per work and line.\n"
            "    tune-bench S --work sft,decode",
    };
    const Option options[] = {
        {"--work", OPTION_TEXT, &job.list, "LIST",
         "some of sft, sft_mix, full, dpo, grpo, decode, decode8, decode32, prefill, prefill2048, tokenizer, merge, load, start; or all (on L only those that take less than minutes: sft, prefill, decode, load)"},
        {"--batch", OPTION_INT, &job.batch, "N", "sequences at a time; dpo: pairs; grpo: prompts with 8 completions each"},
        {"--tokens", OPTION_INT, &job.tokens, "N", "tokens of a sequence; decode, grpo: new tokens; sft_mix, dpo: of the longest row"},
        {"--steps", OPTION_INT, &job.steps, "N", "timed steps, after one that is not timed; start: runs, the best counts (2)"},
        {"--compute", OPTION_TEXT, &job.compute, "auto|f32|bf16", "precision of matrix products"},
        {"--checkpointing", OPTION_TEXT, &job.checkpointing, "none|selective|layer", "activation checkpointing of sft, sft_mix, full, dpo, grpo"},
        {"--rows", OPTION_TEXT, &job.rows, "FILE",
         "file for the lengths of sft_mix and grpo and the texts of tokenizer: {question, answer} or messages; of dpo: {prompt, chosen, rejected} (lengths drawn like GSM8K's and hh-rlhf's)"},
        {"--tokenizer", OPTION_TEXT, &job.tokenizer, "DIR", "tokenizer of the rows (the model's own)"},
        {"-o", OPTION_TEXT, &job.output, "FILE", "write the results and the machine as one JSON object, updated after every row"},
        {"--table", OPTION_TEXT, &job.table, "FILE", "print a file of -o, or bench-peers.json, as markdown, without measuring"},
        {0},
    };
    return command_main(&command, argc, argv, options, measure, &job);
}

static Status bench_main(int argc, char **argv) {
    const char *first = argc > 1 ? argv[1] : "";
    if (!strcmp(first, "--version")) {
        print_result("%s %s\n", program_name, tune_version);
        return ST_OK;
    }
    TRY(cpu_configure(getenv("TUNE_GEMM"), getenv("TUNE_ISA")));
    if (!strcmp(first, "mdp")) return bench_mdp(argc - 1, argv + 1);
    if (!strcmp(first, "comm")) TRY(ranks_open());
    argv[0] = ""; /* the command has no name of its own */
    return bench(argc, argv);
}

int main(int argc, char **argv) {
    threads_wait_passively(argv);
    return program_run(argc, argv, bench_main);
}
