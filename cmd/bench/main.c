/* SPDX-License-Identifier: Apache-2.0 */
/* tune-bench: works on models by --work, and works of their own by the first argument. */
#include <stdlib.h>
#include <string.h>

#include "cmd/app/app.h"
#include "cmd/app/terminal.h"
#include "cmd/bench/bench.h"

const char program_name[] = "tune-bench";

/* most: arguments, with the word itself */
static const struct {
    const char *word;
    size_t most;
    Status (*run)(const Command *command);
} words[] = {
    {"mlp", 1, bench_mlp}, {"ppo", 1, bench_ppo}, {"filter", 1, bench_filter}, {"synth", 2, bench_synth}, {"growth", 1, bench_growth},
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
        return status_hint(status_fail(ST_USAGE, "'mdp' is the first word, its options follow it"), "tune-bench mdp --help explains them");
    return bench_models(command, job);
}

static Status bench(int argc, char **argv) {
    BenchJob job = {.list = "sft,prefill,decode,load", .compute = "auto", .checkpointing = "none", .steps = 2};
    Command command = {
        .arguments_help = "MODEL ... | S | Q | L | mlp | ppo | filter | synth [MODEL] | growth | mdp [FILE|ENV]",
        .help =
            "Measures training and use of a model, or of random weights in the shape of SmolLM2-135M (S), Qwen2.5-0.5B (Q) or Llama-3.2-1B (L);\n"
            "growth: time and memory by the length of a row, the number of rows and of steps;\n"
            "mlp: acting with and updates of a policy of two hidden layers of 64;\n"
            "ppo: steps a second of PPO on CartPole, with stable-baselines3's and cleanrl's settings.\n"
            "filter: ROUGE-L and all filters of texts over 52,002 instructions.\n"
            "synth: tokens a second of tune data synth, beside generation alone of the same answers; share of the filters.\n"
            "mdp: sweeps and solutions of a world, with options of its own; mdp --help explains them.\n"
            "GF/s are of products alone, as the shapes of all ops say (--profile shows them op by op); their share is of the best that this machine's products reach. GB/s: weights, keys and values "
            "that decoding reads, and its share of what memory gives. Each work has a process of its own. --json: one object per work and line.\n"
            "    tune-bench S --work sft,decode",
    };
    const Option options[] = {
        {"--work", OPTION_TEXT, &job.list, "LIST",
         "of sft, sft_mix, full, dpo, grpo, decode, decode8, decode32, prefill, prefill2048, tokenizer, merge, load, start; or all: of L those that take less than minutes (sft,prefill,decode,load)"},
        {"--batch", OPTION_INT, &job.batch, "N", "sequences at a time; dpo: pairs, grpo: prompts, 8 completions each"},
        {"--tokens", OPTION_INT, &job.tokens, "N", "tokens of a sequence; decode, grpo: new ones; sft_mix, dpo: of the longest row"},
        {"--steps", OPTION_INT, &job.steps, "N", "timed steps, behind one that is not; start: runs, of which the best counts (2)"},
        {"--compute", OPTION_TEXT, &job.compute, "auto|f32|bf16", "precision of products"},
        {"--checkpointing", OPTION_TEXT, &job.checkpointing, "none|selective|layer", "of sft, sft_mix, full, dpo, grpo"},
        {"--rows", OPTION_TEXT, &job.rows, "FILE",
         "lengths of sft_mix and grpo, texts of tokenizer: {question, answer} or messages; of dpo: {prompt, chosen, rejected}. Drawn as GSM8K's and hh-rlhf's unless given"},
        {"--tokenizer", OPTION_TEXT, &job.tokenizer, "DIR", "of the rows; the model's own"},
        {"-o", OPTION_TEXT, &job.output, "FILE", "the rows and the machine as one JSON object, written after every row"},
        {"--table", OPTION_TEXT, &job.table, "FILE", "such a file, or bench-peers.json, as markdown; nothing is measured"},
        {0},
    };
    return command_main(&command, argc, argv, options, measure, &job);
}

static Status run(int argc, char **argv) {
    const char *first = argc > 1 ? argv[1] : "";
    if (!strcmp(first, "--version")) {
        print_result("%s %s\n", program_name, tune_version);
        return ST_OK;
    }
    TRY(cpu_configure(getenv("TUNE_GEMM"), getenv("TUNE_ISA")));
    if (!strcmp(first, "mdp")) return bench_mdp(argc - 1, argv + 1);
    argv[0] = ""; /* the program's name alone is the command's */
    return bench(argc, argv);
}

int main(int argc, char **argv) {
    threads_wait_passively(argv);
    return program_run(argc, argv, run);
}
