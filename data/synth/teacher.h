/* SPDX-License-Identifier: Apache-2.0 */
/* Who answers: a model on this machine, a server that speaks OpenAI's protocol, or the log of requests that were answered before.
 *
 *     TeacherConfig config;
 *     TRY(teacher_config(recipe->synth_teacher, "synth.teacher", recipe->path, arena, &config));
 *     Teacher *teacher;
 *     TRY(teacher_open(&config, &(TeacherOptions){.seed = 42, .secret = secret}, &teacher));
 *     TRY(teacher_ask(teacher, prompts, n, &sampling, on_answer, context));
 *     teacher_close(teacher);
 */
#ifndef TUNE_TEACHER_H
#define TUNE_TEACHER_H

#include "data/data.h"
#include "lib/infer/infer.h"

/* How answers are drawn: the keys of the recipe's section `generate`, and the penalties. */
typedef struct TeacherSampling {
    SampleConfig sample;
    int64_t max_new_tokens;
    TextList stop;
} TeacherSampling;
TeacherSampling teacher_sampling(void); /* the model's own distribution, 256 tokens at most */
/* Sets those that the map has. ST_CONFIG: an unknown key (with the line and the nearest name), a value that does not fit. `key`: the map's place in
 * the recipe; file: for messages, NULL: none. */
Status teacher_sampling_read(const Yaml *map, const char *key, const char *file, Arena *arena, TeacherSampling *sampling);
void teacher_sampling_write(const TeacherSampling *sampling, JsonWriter *w, const char *key); /* as a JSON object */

typedef struct TeacherConfig {
    const char *model, *adapter, *chat_template, *compute; /* here: directories; on a server: the model's name */
    const Yaml *template_kwargs;                           /* {name: value}, for the chat template here or the server's; NULL: none */
    bool base;                                             /* plain texts are continued, also where there is a chat template */
    const char *url, *api, *api_key_env, *ca_file; /* api: chat | completions; ca_file: PEM, certificates that are trusted instead of the system's */
    const char *replay;                            /* a log of requests; nobody is asked */
    int64_t concurrency, retries;
    double timeout, requests_per_second, tokens_per_minute; /* 0 = no limit */
    double price_in, price_out;                             /* money for a million tokens */
    int64_t max_batch;                                      /* here: sequences at a time; 0: as `tune generate` */
    const Yaml *node;                                       /* of the map, with sampling beside the keys above */
    const char *key, *file;
} TeacherConfig;
/* ST_CONFIG: nothing to ask, or more than one, unknown keys, values that do not fit. The sampling is checked too. */
Status teacher_config(const Yaml *node, const char *key, const char *file, Arena *arena, TeacherConfig *config);
json_t *teacher_kwargs(const TeacherConfig *config); /* its template_kwargs as an object, a new reference; NULL: none */
Status teacher_config_sampling(const TeacherConfig *config, Arena *arena, TeacherSampling *sampling); /* the sampling beside its keys */

/* secret: the value of an environment variable, NULL when it is not set. now: the day for templates that write one, NULL: today. reads_choices: also
 * a model here answers in words where it could compare. */
typedef struct TeacherOptions {
    uint64_t seed;
    const char *now;
    const char *(*secret)(void *context, const char *name);
    void *context;
    bool reads_choices;
} TeacherOptions;

/* One question: messages, or a text to be continued. All is borrowed. */
typedef struct TeacherPrompt {
    uint64_t number;        /* keys its random numbers */
    const char *key;        /* of the log of requests; 32 characters */
    const json_t *messages; /* NULL: `text` counts */
    const char *text;
    bool rendered;    /* text: as the chat template wrote it, special tokens and all */
    size_t n_choices; /* above 0: which of these is the answer? */
    const char *const *choices;
} TeacherPrompt;
typedef struct TeacherAnswer {
    const char *text;  /* with choices: the chosen one; "" where none was */
    bool cut, refused; /* cut: at max_new_tokens; refused: the teacher will not have this question, `text` says why */
    bool too_long;     /* refused, as it does not fit into the model */
    bool nul;          /* the same of an answer with a NUL character, which is "\\u0000" in `text`: no row can be made of it */
    bool unread;       /* no answer: what replies cost that could not be read; the question is to be asked again */
    double margin;     /* with choices that were compared: log-probability ahead of the next best, nats; else 0 */
    double mean;       /* of choices that were compared and all are numbers: what they come to on average, by their probabilities; else NaN */
    /* With those of replies before that could not be read; where a server does not count them, estimated at four bytes each */
    int64_t prompt_tokens, tokens;
} TeacherAnswer;
typedef Status OnTeacherAnswer(void *context, size_t i, const TeacherAnswer *answer); /* in any order, as they come */

typedef struct Teacher Teacher;
/* ST_INPUT: a model that cannot be opened, a ca_file that is not there; ST_CONFIG: the key is not set, a url that is none. */
Status teacher_open(const TeacherConfig *config, const TeacherOptions *options, Teacher **teacher);
void teacher_close(Teacher *teacher); /* NULL is fine */
/* Asks all. ST_RESOURCE: a server that stays down, or gives no answer that can be read to any; what came before was handed over, and as `unread` what
 * replies to the others cost. ST_INPUT: a prompt that is too long for the model, a request that the log lacks. ST_INTERRUPTED. */
Status teacher_ask(Teacher *teacher, const TeacherPrompt *prompts, size_t n, const TeacherSampling *sampling, OnTeacherAnswer *on_answer,
                   void *context);
/* Tells of a question that was answered in an earlier run: a server is asked it once more before it counts as down. */
void teacher_note_known(Teacher *teacher, const TeacherPrompt *prompt, const TeacherSampling *sampling);
bool teacher_chats(const Teacher *teacher);    /* it takes messages; else texts */
bool teacher_compares(const Teacher *teacher); /* it chooses by log-probabilities; else what it says is read */
/* The choice that a reply begins with, whatever case and punctuation, the longest of several; else the only one that it names. "": none. */
const char *teacher_choice(const char *reply, const char *const *choices, size_t n);
size_t teacher_width(const Teacher *teacher); /* questions at a time */
/* What the chat template writes before a user's first words, with this system message (NULL: none); whoever continues it speaks as the user.
 * ST_INPUT: there is no template here. */
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
    void *state; /* the kind's */
};

int64_t teacher_count(double tokens);                     /* a number that a server or a log claims, within 0..1e9: sums of them stay whole numbers */
size_t teacher_choice_bytes(const TeacherPrompt *prompt); /* of the longest choice */
/* An answer as fields of a line of the log, and back; texts are borrowed from the line. */
void teacher_answer_write(const TeacherAnswer *answer, JsonWriter *w);
Status teacher_answer_read(const json_t *line, TeacherAnswer *answer);

#endif
