/* tune eval: loss and perplexity on rows, the share of tokens guessed right, and of answers that are exactly right. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cmd.h"
#include "cmd/watch.h"
#include "rl/learn/learn.h"
#include "rl/reward/reward_training.h"
#include "rl/reward/scorer.h"
#include "rl/text/text_env.h"
#include "rl/text/text_rl.h"

enum { BATCH_TOKENS = 2048, LOGIT_ROWS = 128, EPISODES = 100, NOT_GIVEN = INT32_MIN };
typedef struct Eval {
    const char *adapter, *compute, *data;
    ChatChoice chat;
    DataConfig config;
    bool exact_match;
    bool sample, watch;
    int64_t episodes, seed;         /* of a run on an environment; episodes: EPISODES unless given */
    double loss_sum;
    int64_t tokens, right;          /* predicted tokens; those whose likeliest token is the target */
    size_t answers, exact;
    const OpenedModel *opened;
    const Dataset *dataset;
} Eval;

static void count_tokens(Eval *job, const Logits *logits, const int32_t *targets) {
    int64_t n = tensor_rows(logits->logits), vocab = tensor_width(logits->logits);
    const float *values = logits->logits->data;
    for (int64_t i = 0; i < n; i++, values += vocab) {
        int64_t best = 0;
        for (int64_t v = 1; v < vocab; v++)
            if (values[v] > values[best]) best = v;
        job->right += best == targets[i];
        job->loss_sum -= logits_logprob(logits, i, targets[i]);
    }
}

static Status eval_batch(Eval *job, Tape *tape, const Batch *batch) {
    const Model *model = job->opened->model;
    tape_reset(tape);
    Tensor *hidden = model_forward(model, tape, &batch->model);
    for (int64_t i = 0; i < batch->n_targets; i += LOGIT_ROWS) {
        int64_t n = MIN(LOGIT_ROWS, batch->n_targets - i);
        Tensor *some = tensor_view(tape_arena(tape), model->device, DT_I32, 1, &n, batch->rows + i);
        if (!some) return ST_RESOURCE;
        Logits logits = model_logits(model, tape, hidden, some);
        TRY(tape_status(tape));
        count_tokens(job, &logits, batch->targets + i);
    }
    job->tokens += batch->n_targets;
    return ST_OK;
}

static Status eval_tokens(Eval *job) {
    Tape *tape = tape_new(job->opened->model->device, job->opened->model->compute, 0);
    Batch batch = {0};
    Status status = tape ? ST_OK : status_fail(ST_RESOURCE, "out of memory for the tape");
    size_t *examples = malloc(job->dataset->n * sizeof *examples);
    if (!examples) status = status_fail(ST_RESOURCE, "out of memory");
    if (tape) tape_record(tape, false);
    for (size_t first = 0, n; status == ST_OK && first < job->dataset->n; first += n) {
        int64_t tokens = 0;
        for (n = 0; first + n < job->dataset->n && (n == 0 || tokens + dataset_length(job->dataset, first + n) <= BATCH_TOKENS); n++) {
            tokens += dataset_length(job->dataset, first + n);
            examples[n] = first + n;
        }
        if (interrupt_requested()) status = status_fail(ST_INTERRUPTED, "interrupted");
        if (status == ST_OK) status = batch_build(job->dataset, examples, n, &batch);
        if (status == ST_OK && batch.n_targets > 0) status = eval_batch(job, tape, &batch);
        if (status == ST_OK && !isfinite(job->loss_sum)) {
            status_fail(ST_NUMERIC, "the loss of '%s' is not finite within rows %zu to %zu", job->data, first + 1, first + n);
            status = status_hint(ST_NUMERIC, "the model computes no numbers there: look at its weights, or try --compute f32");
        }
        show_progress("%zu/%zu rows", first + n, job->dataset->n);
    }
    free(examples);
    batch_release(&batch);
    tape_free(tape);
    return status;
}

/* ---- exact answers: greedily from where the first trained token is ---- */

static size_t prompt_length(const Example *example) {
    return (size_t)(example->n_runs > 0 ? example->runs[0].begin : example->n);
}

static Status compare(void *context, const Completion *completion) {
    Eval *job = context;
    Example example = dataset_example(job->dataset, completion->prompt);
    const Tokenizer *tokenizer = job->opened->tokenizer;
    size_t begin = prompt_length(&example), n = (size_t)example.n - begin;
    bool same;
    if (tokenizer) { /* as text: the same words may be cut into other tokens */
        Str wanted = {0};
        TRY(tokenizer_decode(tokenizer, example.ids + begin, n, true, &wanted));
        same = wanted.len == completion->text.len && !memcmp(str_text(&wanted), str_text(&completion->text), wanted.len);
        str_release(&wanted);
    } else {
        same = n == completion->ids.n && !memcmp(example.ids + begin, completion->ids.data, n * sizeof *example.ids);
    }
    job->answers++;
    job->exact += same;
    show_progress("%zu/%zu answers", job->answers, job->dataset->n);
    return ST_OK;
}

static Status eval_answers(Eval *job, Arena *arena) {
    Prompt *prompts = arena_alloc(arena, job->dataset->n * sizeof *prompts);
    int64_t longest = 1;
    if (!prompts) return ST_RESOURCE;
    for (size_t i = 0; i < job->dataset->n; i++) {
        Example example = dataset_example(job->dataset, i);
        prompts[i] = (Prompt){example.ids, prompt_length(&example), i};
        longest = MAX(longest, example.n - (int64_t)prompts[i].n);
        if (prompts[i].n == 0 || prompts[i].n == (size_t)example.n) {
            status_fail(ST_INPUT, "row %u has no prompt with an answer behind it", example.line);
            return status_hint(ST_INPUT, "--exact-match needs rows with a prompt and a completion");
        }
    }
    /* One token more than any answer has: an answer that goes on is not equal. */
    GenerateConfig config = {
        .sample = {.greedy = true, .temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1}, .max_new_tokens = longest + 1, .n = 1};
    return generate(job->opened->model, job->opened->tokenizer, prompts, job->dataset->n, &config, NULL, compare, job);
}

static void print_json(const Eval *job, double loss) {
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_int(&w, "rows", (int64_t)job->dataset->n);
    jw_int(&w, "tokens", job->tokens);
    jw_double(&w, "loss", loss);
    jw_double(&w, "perplexity", exp(loss));
    jw_double(&w, "accuracy", (double)job->right / (double)job->tokens);
    if (job->exact_match) jw_double(&w, "exact_match", (double)job->exact / (double)job->answers);
    jw_end_object(&w);
    print_result("%s\n", str_text(&w.text));
    jw_release(&w);
}

static Status report(const Command *command, const Eval *job) {
    if (job->tokens == 0) return status_fail(ST_INPUT, "'%s' has no token whose loss counts", job->data);
    double loss = job->loss_sum / (double)job->tokens;
    if (command->json) {
        print_json(job, loss);
        return ST_OK;
    }
    print_result("rows        %zu (%s)\n", job->dataset->n, job->dataset->format);
    print_result("tokens      %lld\nloss        %.6f\nperplexity  %.4f\n", (long long)job->tokens, loss, exp(loss));
    print_result("accuracy    %.2f %% of tokens\n", 100.0 * (double)job->right / (double)job->tokens);
    if (job->exact_match) print_result("exact       %.2f %% of answers\n", 100.0 * (double)job->exact / (double)job->answers);
    return ST_OK;
}

/* ---- a run on an environment ---- */

static bool is_environment_run(const char *path) {
    Arena *arena = arena_new(0);
    const char *policy = arena ? path_join(arena, path, "policy.safetensors") : NULL;
    bool is = policy && file_exists(policy);
    arena_free(arena);
    return is;
}

static Status check_episodes(const Eval *job) {
    return job->episodes >= 1 ? ST_OK : status_fail(ST_USAGE, "--episodes is %lld, expected at least 1", (long long)job->episodes);
}

static Status refuse_data(const char *path) {
    return status_hint(status_fail(ST_USAGE, "--data is for runs on prompts, and '%s' is one on an environment", path),
                       "its episodes are drawn: --episodes N --seed N");
}

static void show_cut(const Evaluation *found) {
    if (found->cut == 0) return;
    char limit[64] = "the limit of their steps";
    if (found->limit > 0) snprintf(limit, sizeof limit, "step %lld, where they were cut", (long long)found->limit);
    show_line("%lld of %lld episode%s did not end before %s", (long long)found->cut, (long long)found->episodes, plural(found->episodes), limit);
}

static Status eval_episodes(const Command *command, const Eval *job) {
    Evaluation found;
    TRY(check_episodes(job));
    Watch watch = {0};
    EvaluationConfig config = {.episodes = job->episodes,
                               .sample = job->sample,
                               .seed = (uint64_t)job->seed,
                               .on_step = job->watch && !command->json ? watch_step : NULL,
                               .context = &watch};
    TRY(learn_evaluate(command->arguments[0], &config, &found));
    show_cut(&found);
    if (command->json) {
        JsonWriter w = {0};
        jw_object(&w, NULL);
        jw_int(&w, "episodes", found.episodes);
        jw_double(&w, "mean_return", found.mean_return);
        jw_double(&w, "std_return", found.std_return);
        jw_double(&w, "mean_length", found.mean_length);
        jw_end_object(&w);
        print_result("%s\n", str_text(&w.text));
        jw_release(&w);
        return ST_OK;
    }
    print_result("episodes  %lld (%s actions)\nreturn    %.4f +- %.4f\nlength    %.2f\n", (long long)found.episodes, job->sample ? "sampled" : "best",
                 found.mean_return, found.std_return, found.mean_length);
    return ST_OK;
}

/* ---- a run on text ---- */

/* A run of tune rl with rewards; what tune sft leaves has none. */
typedef enum TextKind { NO_TEXT_RUN, ON_PROMPTS, ON_TURNS } TextKind;

static Status find_text_run(const char *path, TextKind *kind) {
    Arena *arena = arena_new(0);
    const char *file = arena ? path_join(arena, path, "recipe.yaml") : NULL;
    Recipe *recipe = NULL;
    Status status = file ? ST_OK : ST_RESOURCE;
    *kind = NO_TEXT_RUN;
    if (status == ST_OK && file_exists(file)) status = recipe_read(file, NULL, 0, &recipe);
    if (recipe && recipe->rl_env && text_env_is_meant(recipe->rl_env)) *kind = ON_TURNS;
    else if (recipe && recipe->reward && !recipe->rl_env) *kind = ON_PROMPTS;
    if (recipe && recipe->rl_env && *kind != ON_TURNS) {
        status =
            status_hint(status_fail(ST_INPUT, "'%s' is a run on an environment that has no policy yet", path), "finish it: tune rl RECIPE --resume");
    }
    if (recipe) recipe_free(recipe);
    arena_free(arena);
    return status;
}

static void show_text(const Command *command, const TextEvaluation *found) {
    if (command->json) {
        JsonWriter w = {0};
        jw_object(&w, NULL);
        jw_int(&w, "rows", (int64_t)found->rows);
        jw_double(&w, "reward", found->reward);
        jw_double(&w, "reward_std", found->reward_std);
        jw_double(&w, "completion_length", found->completion_length);
        jw_double(&w, "eos_fraction", found->eos_fraction);
        for (size_t k = 0; k < found->n_columns; k++) jw_double(&w, found->names[k], found->columns[k]);
        jw_end_object(&w);
        print_result("%s\n", str_text(&w.text));
        jw_release(&w);
        return;
    }
    print_result("rows        %zu (greedy answers)\nreward      %.6g +- %.4g\nlength      %.1f tokens, %.1f %% ended by themselves\n", found->rows,
                 found->reward, found->reward_std, found->completion_length, 100 * found->eos_fraction);
    for (size_t k = 0; k < found->n_columns; k++) print_result("%-28s %.6g\n", found->names[k], found->columns[k]);
}

static Status eval_text(const Command *command, const Eval *job) {
    TextEvaluation found;
    Status status = text_rl_evaluate(command->arguments[0], job->data, &(RewardOptions){.secret = secret_from_environment}, &found);
    if (status == ST_OK) show_text(command, &found);
    arena_free(found.arena);
    return status;
}

static void show_episode(void *context, int64_t number, const char *prompt, const char *text, double reward) {
    const Eval *job = context;
    if (job->watch) print_result("-- episode %lld --\n%s%s\n-- return %.6g --\n\n", (long long)number, prompt, text, reward);
    else show_progress("%lld/%lld episodes", (long long)number, (long long)job->episodes);
}

static void show_turns(const Command *command, const Eval *job, const TextEvaluation *found) {
    if (command->json) {
        JsonWriter w = {0};
        jw_object(&w, NULL);
        jw_int(&w, "episodes", (int64_t)found->rows);
        jw_double(&w, "mean_return", found->reward);
        jw_double(&w, "std_return", found->reward_std);
        jw_double(&w, "mean_length", found->turns);
        jw_double(&w, "success", found->success);
        jw_double(&w, "completion_length", found->completion_length);
        for (size_t k = 0; k < found->n_columns; k++) jw_double(&w, found->names[k], found->columns[k]);
        jw_end_object(&w);
        print_result("%s\n", str_text(&w.text));
        jw_release(&w);
        return;
    }
    print_result(
        "episodes  %zu (%s answers)\nreturn    %.4f +- %.4f\nlength    %.2f turns, %.1f tokens\nsuccess   %.1f %% ended by the environment with a return above 0\n",
        found->rows, job->sample ? "sampled" : "greedy", found->reward, found->reward_std, found->turns, found->completion_length,
        100 * found->success);
    for (size_t k = 0; k < found->n_columns; k++) print_result("%-28s %.6g\n", found->names[k], found->columns[k]);
}

static Status eval_turns(const Command *command, Eval *job) {
    TextEvaluation found;
    if (job->data) return refuse_data(command->arguments[0]);
    TRY(check_episodes(job));
    job->watch &= !command->json;
    Status status = text_rl_play(command->arguments[0],
                                 &(TextPlay){.episodes = job->episodes,
                                             .sample = job->sample,
                                             .seed = (uint64_t)job->seed,
                                             .rewards = {.secret = secret_from_environment},
                                             .on_episode = show_episode,
                                             .context = job},
                                 &found);
    end_live_line();
    if (status == ST_OK) show_turns(command, job, &found);
    arena_free(found.arena);
    return status;
}

/* ---- reward models ---- */

static void show_rows(void *context, size_t done, size_t n) {
    (void)context;
    show_progress("%zu/%zu rows", done, n);
}

static void report_reward(const Command *command, const RewardNumbers *m, bool stepwise) {
    double chosen = m->rewards_chosen / m->chosen, rejected = m->rewards_rejected / m->rejected, error = calibration_error(&m->calibration),
           brier = calibration_brier(&m->calibration);
    if (command->json) {
        JsonWriter w = {0};
        jw_object(&w, NULL);
        jw_int(&w, stepwise ? "steps" : "pairs", (int64_t)m->n);
        jw_double(&w, "loss", m->loss);
        jw_double(&w, "accuracy", m->accuracy / m->n);
        jw_double(&w, stepwise ? "rewards_right" : "rewards_chosen", chosen);
        jw_double(&w, stepwise ? "rewards_wrong" : "rewards_rejected", rejected);
        jw_double(&w, "margin", chosen - rejected);
        jw_double(&w, "calibration_error", error);
        jw_double(&w, "brier", brier);
        jw_end_object(&w);
        print_result("%s\n", str_text(&w.text));
        jw_release(&w);
        return;
    }
    print_result("%s       %.0f\nloss        %.6f\naccuracy    %.2f %% %s\n", stepwise ? "steps" : "pairs", m->n, m->loss, 100 * m->accuracy / m->n,
                 stepwise ? "of the steps told right" : "of the pairs put in order");
    print_result("scores      %.4f of what is %s, %.4f of the others\n", chosen, stepwise ? "right" : "chosen", rejected);
    print_result("calibration off by %.2f %%, Brier score %.4f\n", 100 * error, brier);
}

static Status eval_reward(const Command *command, const Eval *job) {
    Scorer *scorer;
    RewardNumbers numbers;
    bool stepwise;
    if (job->exact_match) return status_fail(ST_USAGE, "--exact-match is for language models: a reward model answers nothing");
    ScorerOptions how = {.base_dir = job->adapter ? command->arguments[0] : NULL,
                         .compute = job->compute,
                         .chat_template = job->chat.chat_template,
                         .now = job->chat.now};
    TRY(scorer_open(job->adapter ? job->adapter : command->arguments[0], &how, &scorer));
    RewardEvaluation config = {.model = scorer->model,
                               .tokenizer = scorer->tokenizer,
                               .chat = scorer->chat,
                               .data = job->data,
                               .max_length = job->config.max_length,
                               .truncation = job->config.truncation,
                               .system = job->chat.system,
                               .on_progress = show_rows};
    Status status = reward_evaluate(&config, &numbers, &stepwise);
    end_live_line();
    if (status == ST_OK) report_reward(command, &numbers, stepwise);
    scorer_close(scorer);
    return status;
}

/* Options of episodes on what plays none. */
static Status refuse_episodes(const char *path, const char *option) {
    status_fail(ST_USAGE, "%s is for runs of tune rl on an environment, and '%s' is none", option, path);
    return status_hint(ST_USAGE, "give the output directory of such a run, or rows: --data FILE");
}

static Status run(const Command *command, Eval *job) {
    OpenedModel opened;
    Dataset *dataset = NULL;
    TRY(command_needs(command, 1, 1));
    if (job->config.max_length < 2) return status_fail(ST_USAGE, "--max-length is 2 or more, not %lld", (long long)job->config.max_length);
    if (!file_exists(command->arguments[0]) && !dir_exists(command->arguments[0]))
        return status_fail(ST_INPUT, "'%s' does not exist", command->arguments[0]);
    const char *of_episodes = job->episodes != NOT_GIVEN ? "--episodes" : job->watch ? "--watch" : job->sample ? "--sample" : NULL;
    if (job->episodes == NOT_GIVEN) job->episodes = EPISODES;
    if (is_environment_run(command->arguments[0])) return job->data ? refuse_data(command->arguments[0]) : eval_episodes(command, job);
    TextKind text = NO_TEXT_RUN;
    bool scores;
    TRY(scorer_fits(job->adapter ? job->adapter : command->arguments[0], &scores));
    if (!scores || !job->data) TRY(find_text_run(command->arguments[0], &text));
    if (text == ON_TURNS) return eval_turns(command, job);
    if (of_episodes) return refuse_episodes(command->arguments[0], of_episodes);
    if (scores && job->data) return eval_reward(command, job);
    if (text == ON_PROMPTS) return eval_text(command, job);
    if (!job->data)
        return status_hint(status_fail(ST_USAGE, "tune eval needs --data FILE"),
                           "rows that were not trained on; a run of tune rl is asked by its own prompts or episodes, tune eval RUN");
    TRY(open_model(command->arguments[0], job->adapter, job->compute, &job->chat, &opened));
    job->opened = &opened;
    job->config.scratch = getenv("TMPDIR");
    job->config.chat = opened.chat;
    job->config.system = job->chat.system;
    job->config.vocab_size = opened.model->config.vocab_size;
    if (opened.model->config.learned_positions) job->config.positions = opened.model->config.max_position_embeddings;
    job->config.context = context_count(&opened.model->config);
    Status status = dataset_load(&job->config, &(DataSource){.path = job->data}, 1, opened.tokenizer, &dataset);
    job->dataset = dataset;
    if (status == ST_OK) data_counts_warn(&dataset->counts, job->data, show_warning, NULL);
    if (status == ST_OK) status = eval_tokens(job);
    if (status == ST_OK && job->exact_match) status = eval_answers(job, command->arena);
    if (status == ST_OK) status = report(command, job);
    dataset_free(dataset);
    close_model(&opened);
    return status;
}

Status cmd_eval(int argc, char **argv) {
    Eval job = {.episodes = NOT_GIVEN, .seed = 1, .config = {.format = "auto", .train_on = "auto", .max_length = 1 << 20, .truncation = "error"}};
    Command command = {
        .arguments_help = "MODEL --data FILE | RUN [--episodes N | --data FILE]",
        .help = "Mean loss over the tokens that training would train on, perplexity, and the share of tokens whose likeliest guess is right.\n"
                "    tune eval DIR --adapter runs/sft/adapter --data held_out.jsonl\n"
                "Of a run of tune rl on an environment, also one of texts: episodes played with its policy.\n"
                "    tune eval runs/cartpole --episodes 100\n"
                "Of a run of tune rl on text: what its best answers to prompts earn by the run's rewards.\n"
                "    tune eval runs/grpo --data held_out.jsonl\n"
                "Of a reward model, a run of tune reward: which share of pairs it puts in order, or of steps it tells right.\n"
                "    tune eval runs/reward --data held_out_pairs.jsonl",
    };
    const Option options[] = {
        {"--data", OPTION_TEXT, &job.data, "FILE", "rows, as for training: .jsonl, .json, .csv, .tsv, .txt, .parquet"},
        {"--adapter", OPTION_TEXT, &job.adapter, "DIR", "PEFT adapter to use"},
        {"--compute", OPTION_TEXT, &job.compute, "auto|f32|bf16", "precision of products"},
        {"--format", OPTION_TEXT, &job.config.format, "auto|messages|sharegpt|alpaca|prompt_completion|text|preference|kto|stepwise|ids",
         "form of the rows"},
        {"--train-on", OPTION_TEXT, &job.config.train_on, "auto|completion|assistant|last|all", "which tokens carry loss"},
        CHAT_OPTIONS(job.chat),
        {"--max-length", OPTION_INT, &job.config.max_length, "N", "longest row in tokens"},
        {"--truncation", OPTION_TEXT, &job.config.truncation, "error|drop|keep_start|keep_end", "what to do with longer rows (error)"},
        {"--exact-match", OPTION_FLAG, &job.exact_match, NULL, "also answer each prompt greedily and compare with the row's completion"},
        {"--episodes", OPTION_INT, &job.episodes, "N", "of an environment; 100"},
        {"--sample", OPTION_FLAG, &job.sample, NULL, "draw actions as while training instead of taking the best ones"},
        {"--watch", OPTION_FLAG, &job.watch, NULL, "show each step; take a small --episodes"},
        {"--seed", OPTION_INT, &job.seed, "N", "of the episodes; 1"},
        {0},
    };
    bool done;
    Status status = command_parse(&command, argc, argv, options, &done);
    if (status == ST_OK && !done) status = run(&command, &job);
    arena_free(command.arena);
    return status;
}
