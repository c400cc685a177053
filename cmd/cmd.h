/* SPDX-License-Identifier: Apache-2.0 */
/* The program tune: one file cmd_<name>.c and one line in commands.def per subcommand. A command's options are a table in its file, from which --help
 * is made. Benchmarks are a program of their own, tune-bench (bench/bench.h), which shares what is no command: options, help, terminal, profile.
 *
 *     Command command = {.arguments_help = "MODEL", .help = "Says what is in it."};
 *     const char *adapter = NULL;
 *     const Option options[] = {{"--adapter", OPTION_TEXT, &adapter, "DIR", "PEFT adapter to use"}, {0}};
 *     bool done;
 *     Status status = command_parse(&command, argc, argv, options, &done);   // positionals are in command.arguments
 *     if (status == ST_OK && !done) status = work(&command, adapter);
 *     arena_free(command.arena);
 *     return status;
 */
#ifndef TUNE_CMD_H
#define TUNE_CMD_H

#include "data/data.h"
#include "lib/base/work.h"
#include "lib/infer/infer.h"
#include "lib/train/training.h"

extern const char program_name[];                 /* "tune" or "tune-bench": main.c's of each program; begins its messages */
extern const char tune_version[], tune_program[]; /* "0.2.0-g<commit>"; the same behind "tune " */
extern const char tune_released[];                /* the date of the version, "2026-11-27" */

typedef enum OptionType { OPTION_END, OPTION_FLAG, OPTION_TEXT, OPTION_INT, OPTION_REAL, OPTION_LIST } OptionType;
typedef struct Option {
    const char *name; /* "--max-new-tokens" or "-o" */
    OptionType type;
    void *value; /* bool *, const char **, int64_t *, double *, TextList * (an OPTION_LIST may be given several times) */
    const char
        *argument; /* shown in help; NULL for flags. In capitals what is meant, such as FILE, DIR, N; else the words that it may be: "f32|bf16" */
    const char *help;
} Option;
typedef struct Command {
    const char *name;           /* with the program's: "tune data check"; command_parse sets it */
    const char *arguments_help; /* "MODEL [FILE]", "ls | show NAME": capitals as above; what shells complete is read off it */
    const char *help;           /* what it does, a paragraph, with an example */
    size_t n_arguments;
    const char *arguments[256]; /* positionals; key=value overrides of RECIPE commands among them */
    int64_t threads;
    bool quiet;
    int64_t log;
    bool profile;                /* --profile: where the time went, at the end */
    bool json;                   /* --json is accepted by every command; those that print no result ignore it */
    Arena *arena;                /* lives until the command ends */
    const char *const *sections; /* of a command with a RECIPE: those whose keys it takes, as recipe_command has them; else NULL */
} Command;
/* Fills option values and positionals. --help prints the command's help (help.h) and ends the program's work with *done = true. ST_USAGE names an
 * unknown option and the nearest one. */
Status command_parse(Command *command, int argc, char **argv, const Option *options, bool *done);
void use_threads(int64_t n); /* 0 = one for each core that the process may use, or what OMP_NUM_THREADS says */
/* ST_USAGE unless there are `least` to `most` positional arguments. */
Status command_needs(const Command *command, size_t least, size_t most);

/* A command that takes a RECIPE: its file and overrides, --resume, --dry-run, --schema. */
typedef struct RecipeCommand {
    const char *name; /* "sft" */
    const Command *command;
    Recipe *recipe;
    TrainingOptions options; /* its command: without options but --resume and --force, and of urls without user, password and query */
    bool watch;              /* of tune rl */
} RecipeCommand;
typedef Status RecipeCommandRun(const RecipeCommand *job);
/* Parses, reads the recipe, sets the threads and runs `work`. about: a paragraph with an example; sections: those whose keys --help lists, "" is the
 * top level, "reward" its key of that name, NULL behind the last. Keys of others are ST_CONFIG where they are typed, and in a file where they say how
 * to learn by rewards and rows are to be trained on. */
Status recipe_command(int argc, char **argv, const char *name, const char *about, const char *const *sections, RecipeCommandRun *work);

/* The recipe that the arguments name, a file or one that comes with the program, with their overrides; models by their names at Hugging Face are
 * found. Faults of recipe_read. */
Status command_recipe(const Command *command, Recipe **recipe);

/* For RewardOptions.secret and the like: what the variable `name` holds; NULL where it is not set. Libraries do not read the environment. */
const char *secret_from_environment(void *context, const char *name);

/* Of the program that runs; NULL when the system does not say. */
Status program_folder(Arena *arena, const char **folder);
/* Where the recipes that come with the program may be, in order. */
enum { RECIPE_FOLDERS = 3 };
Status recipe_folders(Arena *arena, const char *folders[RECIPE_FOLDERS], size_t *n);
/* The text of the one of this name, with the files that it names where they are; *path NULL: there is none. */
Status recipe_shipped(Arena *arena, const char *name, Str *text, const char **path);
Status recipe_names(Arena *arena, TextList *names); /* of what is there, as tune recipes lists it */

typedef Status CommandMain(int argc, char **argv);
/* What main does: runs, prints what went wrong, and returns the exit code. */
int program_run(int argc, char **argv, CommandMain *run);
/* Before program_run, by programs that compute: threads that wait for each other let others run. Starts the program once more. */
void let_threads_sleep(char **argv);
/* full_name: "data check", as messages call it and run finds it in argv[0]. A group has commands of its own instead of `run`. */
typedef struct CommandGroup CommandGroup;
typedef struct CommandInfo {
    const char *name, *full_name, *help;
    CommandMain *run;
    const CommandGroup *group;
} CommandInfo;
struct CommandGroup {
    const char *name, *about;
    const CommandInfo *commands;
    size_t n;
};
extern const CommandGroup group_all; /* what stands behind `tune`; its name is "" */
#define COMMAND(name, help) Status cmd_##name(int argc, char **argv);
#define GROUP(name, help) extern const CommandGroup group_##name;
#include "cmd/commands.def"
#undef COMMAND
#undef GROUP
/* Follows words to a command or, when they end before, a group (*info NULL); *used: how many of them. ST_USAGE for a name that is none, with the
 * nearest one. */
Status command_find(const char *const *words, size_t n, const CommandGroup **group, const CommandInfo **info, size_t *used);
Status command_run(int argc, char **argv); /* of main */

void write_numbers(JsonWriter *w, const char *key, const double *values, int64_t n); /* an array */

/* stdout: results only. That it could not be written is kept until the end; once its reader has gone (a closed pipe), work ends as if
 * interrupted. */
void print_result(const char *format, ...) PRINTF_LIKE(1, 2);
void print_text(const char *text, size_t len); /* what would steer a terminal is shown there; a pipe gets the bytes */
void print_raw(const char *text, size_t len);  /* what we steer it with */
void page_text(const char *text, size_t len);  /* by a pager where it is longer than the terminal that it goes to */
void show_result(void);                        /* flushes: what was printed so far can be read */
/* Once, by program_run: flushes, and says what came of writing. ST_RESOURCE for a full disk and the like; a closed pipe ends the program by SIGPIPE,
 * without a word, unless something else went wrong before. */
Status end_result(Status status);
/* Takes an interrupt back where it was Ctrl-C and nothing else that asked; true: the command goes on. program.c's */
bool interrupt_forgive(void);
/* The terminal shows no longer what is typed, which waits for its reader; until echo_on, which a signal's handler may call. Nothing where stdin is
 * none. */
void echo_off(void);
void echo_on(void);
int screen_width(void);    /* columns of stdout's terminal; 0 where it is none */
bool screen_redraws(void); /* stdout is a terminal whose cursor moves: not TERM=dumb */
bool screen_paints(void);  /* the same, and colours are wanted: no NO_COLOR */
/* A number for people: 13310 and not 1.331e+04, else four digits. */
const char *short_number(double value, char out[32]);
/* stderr: a live line on a terminal that can redraw it, plain lines otherwise; nothing with --quiet. */
/* Replaces the live line. On a pipe the first one is a line, then one in 10 seconds, after a minute one a minute. */
void show_progress(const char *format, ...) PRINTF_LIKE(1, 2);
void show_work(void *context, const Work *work);              /* a WorkSink: long work, once it has taken 2 seconds, at the pace of work.h */
void show_line(const char *format, ...) PRINTF_LIKE(1, 2);    /* takes the live line's place, prints a whole line */
void show_message(const char *format, ...) PRINTF_LIKE(1, 2); /* the same, --quiet or not: warnings */
void show_warning(void *context, const char *text);           /* as such a message; context is not looked at, so that it can be a callback */
void show_curve(double value);                                /* one more value of a curve that stands above the live line; on a terminal only */
/* lines, each with its end, above the live line, as it is drawn next; on a terminal only */
void show_table(const char *text);
void end_live_line(void); /* what stands there stays, the next line begins below it */
bool speaks_utf8(void);   /* the locale; where it says nothing, true */
void set_quiet(bool on);

/* --profile. The clock starts when options are read; program_run prints the table on stderr, or with --json a last line {"profile": [...]} on stdout,
 * unless the command has stopped the profile. */
void profile_ask(bool json);
bool profile_asked(void);
void profile_write(JsonWriter *w, const char *key, const ProfileRow *rows, size_t n);
void profile_describe(Str *text, const ProfileRow *rows, size_t n); /* lines of a table, the last one without its end */
void profile_end(void);

/* A curve of any number of values in a few characters. {0} is empty. */
enum { CURVE_BINS = 512 };
/* Means of values_per_bin values each, of the last one in_last */
typedef struct Curve {
    double bins[CURVE_BINS];
    size_t n, values_per_bin, in_last;
} Curve;
void curve_add(Curve *curve, double value); /* NaN and infinities are left out */
/* `rows` lines that end with '\n', each at most `columns` wide, with the greatest and the least value beside them; nothing when there is no room. */
void curve_write(const Curve *curve, int columns, int rows, bool utf8, Str *out);

/* org/name that is no path here, and is in the Hugging Face cache (HF_HUB_CACHE, HF_HOME, ~/.cache/huggingface/hub), becomes the folder there, and a
 * line says so; anything else stays as it is. *model NULL: nothing. */
Status model_find(Arena *arena, const char **model);
/* The same for every key of a recipe that names a model, such as model.path, reward's and teachers'. command_recipe does it. */
Status recipe_models_find(Recipe *recipe);
/* The same for an argument; ST_INPUT with the command that downloads it where it looks like org/name and is neither here nor in the cache.
 * command_parse does it to MODEL and the like, and to options that take the DIR of a model. */
Status argument_model_find(Arena *arena, const char **model);
Status argument_adapter_find(Arena *arena, const char **adapter);

/* A model with its adapter and tokenizer, as most commands open it. */
typedef struct OpenedModel {
    Model *model;
    Tokenizer *tokenizer; /* NULL when the directory has none */
    Chat *chat;           /* NULL without a tokenizer */
    char *system;         /* of a run: the system message that it was trained with; NULL: none */
} OpenedModel;
/* How conversations are rendered: what most commands take as --chat-template, --template-kwargs, --now and --system. */
typedef struct ChatChoice {
    const char *chat_template, *now, *system;
    TextList kwargs; /* each "name=value" or "{name: value, ...}" */
} ChatChoice;
/* How rows of plain texts are read, of commands that read them as text unless told otherwise. */
#define AS_OPTION(config)                                                                                        \
    {                                                                                                            \
        "--as", OPTION_TEXT, &(config).as, "chat|text",                                                          \
            "rows of plain texts: as turns of the chat template, as data.as: chat does, or as they stand (text)" \
    }
/* dir: of a model, or the output of a run, which stands for its model, or for its base with its adapter. Choice NULL: the template of the adapter
 * (which may be NULL), else the model's own */
Status open_model(const char *dir, const char *adapter, const char *compute, const ChatChoice *choice, OpenedModel *opened);
Status open_chat(const char *dir, const char *adapter, const ChatChoice *choice, OpenedModel *opened);
/* choice->kwargs as an object, a new reference; NULL: none. ST_USAGE for what is no such text. */
Status chat_choice_kwargs(const ChatChoice *choice, json_t **values);
const char *chat_choice_first(const ChatChoice *choice); /* the name of an option that was given; NULL: none */
/* ST_USAGE for an option of the choice that does nothing with this template: a system message that it does not write, a date. */
Status chat_choice_check(const ChatChoice *choice, const Chat *chat);
void close_model(OpenedModel *opened);

#define CHAT_OPTIONS(choice)                                                                                                    \
    {"--chat-template", OPTION_TEXT, &(choice).chat_template, "FILE|chatml|llama3|alpaca|plain", "instead of the model's own"}, \
        {"--template-kwargs", OPTION_LIST, &(choice).kwargs, "NAME=VALUE",                                                      \
         "for the template, as enable_thinking=false; also several, or '{NAME: VALUE, ...}'"},                                  \
        {"--system", OPTION_TEXT, &(choice).system, "TEXT", "system message of conversations without one"}, {                   \
        "--now", OPTION_TEXT, &(choice).now, "DATE", "for templates that write the date, YYYY-MM-DD [HH:MM:SS]; today"          \
    }
/* How tokens are chosen, as generate and chat take it; stop: a TextList. */
#define SAMPLING_OPTIONS(config, stop)                                                                                                     \
    {"--max-new-tokens", OPTION_INT, &(config).max_new_tokens, "N", "longest answer in tokens"},                                           \
        {"--temperature", OPTION_REAL, &(config).sample.temperature, "X", "1 = as the model has it, 0 = greedy"},                          \
        {"--greedy", OPTION_FLAG, &(config).sample.greedy, NULL, "always the likeliest token"},                                            \
        {"--top-k", OPTION_INT, &(config).sample.top_k, "N", "keep the N likeliest tokens; 0 = all"},                                      \
        {"--top-p", OPTION_REAL, &(config).sample.top_p, "X", "keep the smallest set with this probability"},                              \
        {"--min-p", OPTION_REAL, &(config).sample.min_p, "X", "drop tokens below this share of the likeliest one"},                        \
        {"--typical-p", OPTION_REAL, &(config).sample.typical_p, "X", "keep the least surprising set with this probability"},              \
        {"--epsilon-cutoff", OPTION_REAL, &(config).sample.epsilon_cutoff, "X", "drop tokens below this probability"},                     \
        {"--eta-cutoff", OPTION_REAL, &(config).sample.eta_cutoff, "X", "the same, lower where many tokens are likely"},                   \
        {"--repetition-penalty", OPTION_REAL, &(config).sample.repetition_penalty, "X", "above 1: tokens seen before become less likely"}, \
        {"--presence-penalty", OPTION_REAL, &(config).sample.presence_penalty, "X", "off the logits of tokens that the answer has"},       \
        {"--frequency-penalty", OPTION_REAL, &(config).sample.frequency_penalty, "X", "the same for each time that it has them"},          \
        {"--no-repeat-ngram-size", OPTION_INT, &(config).sample.no_repeat_ngram_size, "N", "no N tokens in a row come twice; 0 = off"}, {  \
        "--stop", OPTION_LIST, &(stop), "TEXT", "text that ends an answer; may be given several times"                                     \
    }
Status check_sampling(const GenerateConfig *config); /* ST_USAGE for what is out of range */
/* Rows of a file as token ids: questions (row_question of data.h) or whole rows (row_whole). config: of its fields `system` and
 * `as` count.
 * ST_INPUT with file and line: also ids and lengths that the model does not know. */
typedef struct TokenRow {
    json_t *json;
    Ids ids;
} TokenRow;
typedef struct TokenRows {
    TokenRow *items;
    size_t n, cap;
} TokenRows;
Status token_rows_read(const char *file, const OpenedModel *opened, const DataConfig *config, bool questions, TokenRows *rows);
void token_rows_release(TokenRows *rows);

/* ST_CONFIG when a file that is to be written is one of the inputs, under whatever name: a file, or one that makes up the model or adapter in a
 * directory. NULLs among them are passed over. */
Status check_output(const char *output, const char *const *inputs, size_t n);
/* ST_CONFIG when a page (or drawing) would take the place of a file that is none. path NULL: nothing. */
Status check_page(const char *path);
/* Lines of results: to stdout when path is NULL, else to a file that appears whole. */
typedef struct ResultFile {
    bool to_file;
    FileWriter writer;
    size_t n;
} ResultFile; /* n: lines */
Status result_open(ResultFile *result, const char *path);
Status result_line(ResultFile *result, const Str *line); /* fails once the file could not be written */
Status result_flush(ResultFile *result);                 /* tells that before it is closed */
/* The file appears when status is fine; else the lines so far are kept as FILE.partial, and a warning says so. Returns it, or the write's */
Status result_close(ResultFile *result, Status status);

#endif
