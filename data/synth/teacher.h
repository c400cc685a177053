/* SPDX-License-Identifier: Apache-2.0 */
/* The source of answers: a local model, a server with OpenAI's protocol, or the log of an earlier run.
 *
 *     TeacherConfig config;
 *     TRY(teacher_config(recipe->synth_teacher, "synth.teacher", recipe->path, arena, &config));
 *     Teacher *teacher;
 *     TRY(teacher_open(&config, &(TeacherOptions){.device = device, .seed = 42, .secret = secret}, &teacher));
 *     TRY(teacher_ask(teacher, prompts, n, &sampling, on_answer, context));
 *     teacher_close(teacher);
 */
#ifndef TUNE_TEACHER_H
#define TUNE_TEACHER_H

#include "data/data.h"
#include "lib/comm/comm.h"
#include "lib/infer/infer.h"

/* How answers are sampled: the keys of the recipe's section `generate`, and the penalties. */
typedef struct TeacherSampling {
    SampleConfig sample;
    int64_t max_new_tokens;
    TextList stop;
} TeacherSampling;
TeacherSampling teacher_sampling(void); /* the model's own distribution, at most 256 tokens */
/* Sets the options that the map has. ST_CONFIG: an unknown key (with the line and the nearest name), an invalid value. `key`: the map's place in the
 * recipe; file: for messages, NULL: none. */
Status teacher_sampling_read(const Yaml *map, const char *key, const char *file, Arena *arena, TeacherSampling *sampling);
void teacher_sampling_write(const TeacherSampling *sampling, JsonWriter *w, const char *key); /* as a JSON object */

typedef struct TeacherConfig {
    const char *model, *adapter, *chat_template, *compute; /* local: directories; on a server: the model's name */
    const Yaml *template_kwargs;                           /* {name: value}, for the chat template, local or on the server; NULL: none */
    bool base;                                             /* continue plain texts, even if there is a chat template */
    const char *url, *api, *api_key_env, *ca_file;         /* api: chat | completions; ca_file: PEM, certificates to trust instead of the system's */
    const char *replay;                                    /* a log of requests; no model is asked */
    int64_t concurrency, retries;
    double timeout, requests_per_second, tokens_per_minute; /* 0 = no limit */
    double price_in, price_out;                             /* price of a million tokens */
    int64_t max_batch;                                      /* local: number of parallel sequences; 0: as `tune generate` */
    const Yaml *node;                                       /* parses the map, which has sampling options besides the keys above */
    const char *key, *file;
} TeacherConfig;
/* ST_CONFIG: no teacher or several, unknown keys, invalid values. Also checks the sampling. */
Status teacher_config(const Yaml *node, const char *key, const char *file, Arena *arena, TeacherConfig *config);
json_t *teacher_kwargs(const TeacherConfig *config); /* its template_kwargs as an object, a new reference; NULL: none */
Status teacher_config_sampling(const TeacherConfig *config, Arena *arena, TeacherSampling *sampling); /* the sampling options in its map */

/* secret: the value of an environment variable, NULL if it is not set. now: the date for templates that write one, NULL: today. reads_choices: a
 * local model also answers in words, although it could compare. */
typedef struct TeacherOptions {
    const Device *device; /* of a local teacher */
    uint64_t seed;
    const char *now;
    const char *(*secret)(void *context, const char *name);
    void *context;
    bool reads_choices;
    /* of a local teacher: the ranks that share its work, and its number (teacher_ranks.h); NULL: one process */
    Comm *comm;
    int number;
} TeacherOptions;

/* One question: messages, or a text to continue. All is borrowed. */
typedef struct TeacherPrompt {
    uint64_t number;        /* the key of its random numbers */
    const char *key;        /* key in the log of requests; 32 characters */
    const json_t *messages; /* NULL: `text` is used */
    const char *text;
    bool rendered;    /* text: as the chat template wrote it, including special tokens */
    size_t n_choices; /* above 0: the answer is one of these */
    const char *const *choices;
} TeacherPrompt;
typedef struct TeacherAnswer {
    const char *text;  /* with choices: the chosen one; "" if none */
    bool cut, refused; /* cut: truncated at max_new_tokens; refused: the teacher rejects this question, `text` says why */
    bool too_long;     /* refused because it does not fit into the model's context */
    bool nul;          /* refused because the answer has a NUL character, shown as "\\u0000" in `text`: it cannot become a row */
    bool unread;       /* no answer: reports the cost of unreadable replies; ask the question again */
    double margin;     /* with choices that were compared: margin in log-probability to the next best, in nats; else 0 */
    double mean;       /* with compared choices that are all numbers: their mean by probability; else NaN */
    /* Includes unreadable earlier replies; if a server does not count tokens, estimated as four bytes each */
    int64_t prompt_tokens, tokens;
} TeacherAnswer;
typedef Status OnTeacherAnswer(void *context, size_t i, const TeacherAnswer *answer); /* called in any order, on arrival */

typedef struct Teacher Teacher;
/* ST_INPUT: a model that cannot be opened, a missing ca_file; ST_CONFIG: the key is not set, an invalid url. */
Status teacher_open(const TeacherConfig *config, const TeacherOptions *options, Teacher **teacher);
void teacher_close(Teacher *teacher); /* NULL is fine */
/* Asks all questions. ST_RESOURCE: a server that stays down, or sends no readable answer; answers before that were delivered, and the costs of
 * replies to the other questions as `unread`. ST_INPUT: a prompt that is too long for the model, a request that the log lacks. ST_INTERRUPTED. */
Status teacher_ask(Teacher *teacher, const TeacherPrompt *prompts, size_t n, const TeacherSampling *sampling, OnTeacherAnswer *on_answer,
                   void *context);
/* Records a question that an earlier run has answered: before a server counts as down, it is asked this question again. */
void teacher_note_known(Teacher *teacher, const TeacherPrompt *prompt, const TeacherSampling *sampling);
bool teacher_config_is_local(const TeacherConfig *config); /* a model on this machine */
bool teacher_chats(const Teacher *teacher);                /* true: it takes messages; false: texts */
bool teacher_compares(const Teacher *teacher);             /* true: it compares choices by log-probability; false: its words are read */
/* The choice that a reply begins with, ignoring case and punctuation; the longest of several. Otherwise the only choice that the reply contains. "":
 * none. */
const char *teacher_choice(const char *reply, const char *const *choices, size_t n);
size_t teacher_width(const Teacher *teacher); /* number of parallel questions */
/* The text that the chat template writes before a user's first words, with this system message (NULL: none); a model that continues it writes as the
 * user. ST_INPUT: there is no template here. */
Status teacher_user_turn(const Teacher *teacher, const char *system, Str *text);

/* ---- the kinds: teacher_local.c, teacher_remote.c, teacher_replay.c ---- */

typedef struct TeacherKind {
    Status (*open)(Teacher *teacher);
    void (*close)(Teacher *teacher);
    Status (*ask)(Teacher *teacher, const TeacherPrompt *prompts, size_t n, const TeacherSampling *sampling, OnTeacherAnswer *on_answer,
                  void *context);
    Status (*user_turn)(const Teacher *teacher, const char *system, Str *text);                         /* NULL: it has no template */
    void (*note_known)(Teacher *teacher, const TeacherPrompt *prompt, const TeacherSampling *sampling); /* NULL: it needs none */
} TeacherKind;
extern const TeacherKind teacher_kind_local, teacher_kind_remote, teacher_kind_replay;
struct Teacher {
    const TeacherKind *kind;
    TeacherConfig config;
    TeacherOptions options;
    bool chats, compares;
    size_t width;
    void *state; /* private to the kind */
};

int64_t teacher_count(double tokens);                     /* a number claimed by a server or a log, limited to 0..1e9: sums of these stay exact */
size_t teacher_choice_bytes(const TeacherPrompt *prompt); /* of the longest choice */
/* Writes an answer as fields of a line of the log, and reads it back; texts are borrowed from the line. */
void teacher_answer_write(const TeacherAnswer *answer, JsonWriter *w);
Status teacher_answer_read(const json_t *line, TeacherAnswer *answer);

#endif
