/* SPDX-License-Identifier: Apache-2.0 */
/* tune eval: evaluates a model on rows, or a run by its own rewards or episodes. */
#include "cmd/app/commands.h"
#include "cmd/common/dealt.h"
#include "cmd/train/cmd_eval.h"
#include "rl/reward/scorer.h"
#include "rl/text/text_env.h"

enum { EPISODES = 100, NOT_GIVEN = INT32_MIN };

static bool is_environment_run(const char *path) {
    Arena *arena = arena_new(0);
    const char *policy = arena ? path_join(arena, path, "policy.safetensors") : NULL;
    bool is = policy && file_exists(policy);
    arena_free(arena);
    return is;
}

/* The kind of a run of tune rl on text; NO_TEXT_RUN for anything else, such as a run of tune sft. */
typedef enum TextKind { NO_TEXT_RUN, ON_PROMPTS, ON_TURNS } TextKind;

static Status find_text_run(const char *path, TextKind *kind) {
    Arena *arena = arena_new(0);
    const char *file = arena ? path_join(arena, path, "recipe.yaml") : NULL;
    Recipe *recipe = NULL;
    Status status = file ? ST_OK : ST_RESOURCE;
    *kind = NO_TEXT_RUN;
    if (status == ST_OK && file_exists(file)) status = recipe_read(file, NULL, 0, &recipe);
    if (recipe && recipe->rl_env && text_env_is_requested(recipe->rl_env))
        *kind = ON_TURNS;
    else if (recipe && recipe->reward && !recipe->rl_env)
        *kind = ON_PROMPTS;
    if (recipe && recipe->rl_env && *kind != ON_TURNS) {
        status =
            status_hint(status_fail(ST_INPUT, "'%s' is a run in an environment that has no policy yet", path), "finish it: tune rl RECIPE --resume");
    }
    if (recipe) recipe_free(recipe);
    arena_free(arena);
    return status;
}

static Status check_episodes(const char *path, const Eval *job) {
    if (job->data)
        return status_hint(status_fail(ST_USAGE, "--data is for runs on prompts, and '%s' is a run in an environment", path),
                           "use --episodes N and --seed N");
    return job->episodes >= 1 ? ST_OK : status_fail(ST_USAGE, "--episodes is %lld, expected at least 1", (long long)job->episodes);
}

/* Refuses options for rendering on a run of tune rl, which renders as its recipe says. */
static Status check_rendering(const char *path, const Eval *job) {
    if (job->chat.kwargs.n == 0) return ST_OK;
    return status_fail(ST_USAGE, "--template-kwargs does nothing: '%s' is a run of tune rl, which renders prompts as its recipe says", path);
}

/* Refuses an option for episodes on something that plays none. */
static Status refuse_episodes(const char *path, const char *option) {
    status_fail(ST_USAGE, "%s is for runs of tune rl in an environment, and '%s' is not one", option, path);
    return status_hint(ST_USAGE, "give the output directory of such a run, or rows: --data FILE");
}

static Status cmd_eval_run(const Command *command, void *context) {
    Eval *job = context;
    TRY(command_needs(command, 1, 1));
    const char *path = command->arguments[0];
    if (job->config.max_length < 2) return status_fail(ST_USAGE, "--max-length must be 2 or more, not %lld", (long long)job->config.max_length);
    if (!file_exists(path) && !dir_exists(path)) return status_fail(ST_INPUT, "'%s' does not exist", path);
    const char *of_episodes = job->episodes != NOT_GIVEN ? "--episodes" : job->watch ? "--watch" : job->sample ? "--sample" : NULL;
    if (job->episodes == NOT_GIVEN) job->episodes = EPISODES;
    job->watch &= !command->json;
    const bool first = dealt_rank() == 0; /* episodes and rewards of pairs are one rank's work */
    if (is_environment_run(path)) {
        TRY(check_rendering(path, job));
        TRY(check_episodes(path, job));
        return first ? eval_environment(command, job) : ST_OK;
    }
    TextKind text = NO_TEXT_RUN;
    bool scores;
    TRY(scorer_fits(job->adapter ? job->adapter : path, &scores));
    if (!scores || !job->data) TRY(find_text_run(path, &text));
    if (text != NO_TEXT_RUN) TRY(check_rendering(path, job));
    if (text == ON_TURNS) {
        TRY(check_episodes(path, job));
        return first ? eval_turns(command, job) : ST_OK;
    }
    if (of_episodes) return refuse_episodes(path, of_episodes);
    if (scores && job->data) return first ? eval_reward(command, job) : ST_OK;
    if (text == ON_PROMPTS) return eval_prompts(command, job);
    if (job->data) return eval_rows(command, job);
    return status_hint(status_fail(ST_USAGE, "tune eval needs --data FILE"),
                       "give rows that were not trained on; a run of tune rl has its own prompts or episodes: tune eval RUN");
}

Status cmd_eval(int argc, char **argv) {
    Eval job = {.episodes = NOT_GIVEN, .seed = 1, .config = {.format = "auto", .train_on = "auto", .max_length = 1 << 20, .truncation = "error"}};
    Command command = {
        .over_ranks = true,
        .arguments_help = "MODEL --data FILE | RUN [--episodes N | --data FILE]",
        .help =
            "Evaluates a model on rows: mean loss over the tokens that training would train on, perplexity, and the share of tokens whose most likely prediction is right.\n"
            "    tune eval DIR --adapter runs/sft/adapter --data held_out.jsonl\n"
            "For a run of tune rl in an environment, including one of texts: plays episodes with its policy.\n"
            "    tune eval runs/cartpole --episodes 100\n"
            "For a run of tune rl on prompts: the mean reward of greedy answers, by the run's rewards.\n"
            "    tune eval runs/grpo --data held_out.jsonl\n"
            "For a reward model, a run of tune reward: the share of pairs that it orders correctly, or of steps that it classifies correctly.\n"
            "    tune eval runs/reward --data held_out_pairs.jsonl",
    };
    const Option options[] = {
        {"--data", OPTION_TEXT, &job.data, "FILE", "rows, as in training: .jsonl, .json, .csv, .tsv, .txt, .parquet"},
        {"--adapter", OPTION_TEXT, &job.adapter, "DIR", "PEFT adapter to use"},
        {"--compute", OPTION_TEXT, &job.compute, "auto|f32|bf16", "precision of matrix products"},
        {"--format", OPTION_TEXT, &job.config.format, "auto|messages|sharegpt|alpaca|prompt_completion|text|preference|kto|stepwise|ids",
         "format of the rows"},
        {"--as", OPTION_TEXT, &job.config.as, "auto|chat|text",
         "how rows of plain text are read, like data.as (auto; for a reward model as in its training)"},
        {"--train-on", OPTION_TEXT, &job.config.train_on, "auto|completion|assistant|last|all", "tokens on which the loss is computed"},
        CHAT_OPTIONS(job.chat),
        {"--max-length", OPTION_INT, &job.config.max_length, "N", "longest row in tokens"},
        {"--truncation", OPTION_TEXT, &job.config.truncation, "error|drop|keep_start|keep_end", "what to do with longer rows (error)"},
        {"--exact-match", OPTION_FLAG, &job.exact_match, NULL, "also answer each prompt greedily and compare the answer with the row's completion"},
        {"--episodes", OPTION_INT, &job.episodes, "N", "number of episodes of a run in an environment (100)"},
        {"--sample", OPTION_FLAG, &job.sample, NULL, "sample actions as in training instead of taking the best ones"},
        {"--watch", OPTION_FLAG, &job.watch, NULL, "show each step; best with few --episodes"},
        {"--seed", OPTION_INT, &job.seed, "N", "seed of the episodes (1)"},
        {0},
    };
    return command_main(&command, argc, argv, options, cmd_eval_run, &job);
}
