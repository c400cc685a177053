/* SPDX-License-Identifier: Apache-2.0 */
/* Questions of a local teacher that are dealt to ranks. */
#include "data/synth/teacher_ranks.h"

#include <stdlib.h>
#include <string.h>

typedef enum JobKind { JOB_CHECK, JOB_PROMPTS, JOB_BRANCHES, JOB_END } JobKind;

/* Begins what rank 0 says to all. Stop texts follow, then prompts or stems. */
typedef struct Job {
    int32_t kind, teacher;
    uint64_t n;
    /* of prompts */
    uint64_t seed;
    int64_t max_new_tokens, max_batch;
    SampleConfig sample;
    uint64_t n_stop, n_stop_ids;
    int32_t stop_id;
} Job;

/* ---- texts and numbers in a message ---- */

static void message_put(Str *message, const void *bytes, size_t size) { str_append_n(message, bytes, size); }

static void message_put_count(Str *message, uint64_t n) { message_put(message, &n, sizeof n); }

static void message_put_ids(Str *message, const int32_t *ids, size_t n) {
    message_put_count(message, n);
    message_put(message, ids, n * sizeof *ids);
}

typedef struct Reading {
    const char *at, *end;
} Reading;

static Status message_get(Reading *reading, void *bytes, size_t size) {
    if ((size_t)(reading->end - reading->at) < size) return status_fail(ST_RESOURCE, "a message between ranks ends too early");
    if (size) memcpy(bytes, reading->at, size);
    reading->at += size;
    return ST_OK;
}

/* A copy of n elements in the arena, with a 0 after it. */
static Status message_get_array(Reading *reading, Arena *arena, size_t size, void **array, size_t *n) {
    uint64_t count = 0;
    size_t bytes;
    TRY(message_get(reading, &count, sizeof count));
    if (!size_mul((size_t)count, size, &bytes) || bytes > (size_t)(reading->end - reading->at))
        return status_fail(ST_RESOURCE, "a message between ranks ends too early");
    *array = arena_zero(arena, bytes + size);
    *n = (size_t)count;
    return *array ? message_get(reading, *array, bytes) : ST_RESOURCE;
}

/* ---- who has which questions ---- */

static size_t first_of(const Comm *comm, size_t n, int rank) {
    const size_t ranks = (size_t)comm_size(comm), r = (size_t)rank;
    return n / ranks * r + (n % ranks * r + ranks - 1) / ranks;
}

static Status say_to_all(Comm *comm, const Str *message) {
    uint64_t size = message->len;
    TRY(comm_broadcast(comm, COMM_CONTROL, "length of questions", 0, &size, sizeof size));
    return comm_broadcast(comm, COMM_EXPERIENCE, "questions", 0, message->data, message->len);
}

static Status say_to_first(Comm *comm, const Str *message) {
    const uint64_t size = message->len;
    TRY(comm_send(comm, COMM_CONTROL, "length of answers", 0, &size, sizeof size));
    return comm_send(comm, COMM_EXPERIENCE, "answers", 0, str_text(message), message->len);
}

/* What a rank answers; the caller frees it. */
static Status hear_from(Comm *comm, int rank, char **bytes, Reading *reading) {
    uint64_t size;
    *bytes = NULL;
    TRY(comm_receive(comm, COMM_CONTROL, "length of answers", rank, &size, sizeof size));
    *bytes = malloc(MAX((size_t)size, 1));
    if (!*bytes) return status_fail(ST_RESOURCE, "out of memory for the answers of rank %d", rank);
    *reading = (Reading){*bytes, *bytes + size};
    return comm_receive(comm, COMM_EXPERIENCE, "answers", rank, *bytes, (size_t)size);
}

static Status say_job(Comm *comm, const Job *job) {
    Str message = {0};
    message_put(&message, job, sizeof *job);
    Status status = say_to_all(comm, &message);
    str_release(&message);
    return status;
}

static Status compare_models(Comm *comm, const Model *model) {
    CommFact fact = {"teacher", "", ST_INPUT};
    comm_fact_hash(&fact, model_fingerprint(model));
    return comm_agree(comm, &fact, 1);
}

Status teacher_deal_check(const TeacherModel *teacher) {
    if (comm_size(teacher->comm) == 1) return ST_OK;
    TRY(say_job(teacher->comm, &(Job){.kind = JOB_CHECK, .teacher = teacher->number}));
    return compare_models(teacher->comm, teacher->model);
}

Status teacher_dismiss(Comm *comm) { return comm_size(comm) == 1 ? ST_OK : say_job(comm, &(Job){.kind = JOB_END}); }

/* ---- prompts ---- */

/* Hands out completions with the prompt's number among all prompts. */
typedef struct Share {
    Comm *comm;
    size_t first;
    OnDone *on_done;
    void *context;
    Str *message; /* of another rank: its completions */
} Share;

/* Another rank may have failed meanwhile. */
static Status look_at_ranks(void *context, size_t prompt, int64_t sample, int32_t id, double logprob, const char *text) {
    (void)prompt, (void)sample, (void)id, (void)logprob, (void)text;
    return comm_check(((const Share *)context)->comm);
}

typedef struct AnswerHead {
    uint64_t prompt, finish;
} AnswerHead;

static Status share_done(void *context, const Completion *completion) {
    const Share *share = context;
    Completion numbered = *completion;
    numbered.prompt += share->first;
    TRY(comm_check(share->comm));
    if (!share->message) return share->on_done(share->context, &numbered);
    message_put(share->message, &(AnswerHead){numbered.prompt, (uint64_t)numbered.finish}, sizeof(AnswerHead));
    message_put_ids(share->message, numbered.ids.data, numbered.ids.n);
    message_put_count(share->message, numbered.text.len);
    message_put(share->message, str_text(&numbered.text), numbered.text.len);
    return ST_OK;
}

static Status share_generate(const TeacherModel *teacher, const Prompt *prompts, size_t n, const GenerateConfig *config, Share *share) {
    const int rank = comm_rank(teacher->comm);
    const size_t end = first_of(teacher->comm, n, rank + 1);
    share->comm = teacher->comm;
    share->first = first_of(teacher->comm, n, rank);
    if (share->first == end) return ST_OK;
    return generate(teacher->model, teacher->tokenizer, prompts + share->first, end - share->first, config, look_at_ranks, share_done, share);
}

static Status read_answers(Reading *reading, Arena *arena, OnDone *on_done, void *context) {
    while (reading->at < reading->end) {
        AnswerHead head;
        void *ids, *text;
        Completion completion = {0};
        arena_reset(arena);
        TRY(message_get(reading, &head, sizeof head));
        TRY(message_get_array(reading, arena, sizeof(int32_t), &ids, &completion.ids.n));
        TRY(message_get_array(reading, arena, 1, &text, &completion.text.len));
        completion.prompt = (size_t)head.prompt;
        completion.finish = (FinishReason)head.finish;
        completion.ids.data = ids;
        completion.text.data = text;
        TRY(on_done(context, &completion));
    }
    return ST_OK;
}

static Status hear_answers(Comm *comm, OnDone *on_done, void *context) {
    Arena *arena = arena_new(0);
    Status status = arena ? ST_OK : ST_RESOURCE;
    for (int rank = 1; rank < comm_size(comm) && status == ST_OK; rank++) {
        char *bytes;
        Reading reading;
        status = hear_from(comm, rank, &bytes, &reading);
        if (status == ST_OK) status = read_answers(&reading, arena, on_done, context);
        free(bytes);
    }
    arena_free(arena);
    return status;
}

static void write_prompts(const TeacherModel *teacher, const Prompt *prompts, size_t n, const GenerateConfig *config, Str *message) {
    Job job = {.kind = JOB_PROMPTS,
               .teacher = teacher->number,
               .n = n,
               .seed = config->seed,
               .max_new_tokens = config->max_new_tokens,
               .max_batch = config->max_batch,
               .sample = config->sample,
               .n_stop = config->n_stop,
               .n_stop_ids = config->n_stop_ids,
               .stop_id = config->n_stop_ids ? config->stop_ids[0] : -1};
    ASSERT(config->n_stop_ids <= 1 && config->sample.n_bias == 0 && config->n == 1, "%zu stop ids", config->n_stop_ids);
    message_put(message, &job, sizeof job);
    for (size_t i = 0; i < config->n_stop; i++) {
        message_put_count(message, strlen(config->stop[i]));
        message_put(message, config->stop[i], strlen(config->stop[i]));
    }
    for (size_t i = 0; i < n; i++) {
        message_put_count(message, prompts[i].number);
        message_put_ids(message, prompts[i].ids, prompts[i].n);
    }
}

Status teacher_deal_prompts(const TeacherModel *teacher, const Prompt *prompts, size_t n, const GenerateConfig *config, OnDone *on_done,
                            void *context) {
    if (comm_size(teacher->comm) == 1) return generate(teacher->model, teacher->tokenizer, prompts, n, config, NULL, on_done, context);
    Str message = {0};
    write_prompts(teacher, prompts, n, config, &message);
    Status status = say_to_all(teacher->comm, &message);
    str_release(&message);
    TRY(status);
    TRY(share_generate(teacher, prompts, n, config, &(Share){.on_done = on_done, .context = context}));
    return hear_answers(teacher->comm, on_done, context);
}

static Status serve_prompts(const TeacherModel *teacher, const Job *job, Reading *reading, Arena *arena, Str *answers) {
    const char **stop = arena_alloc(arena, MAX((size_t)job->n_stop, 1) * sizeof *stop);
    Prompt *prompts = arena_zero(arena, MAX((size_t)job->n, 1) * sizeof *prompts);
    size_t len;
    void *array;
    if (!stop || !prompts) return ST_RESOURCE;
    for (size_t i = 0; i < job->n_stop; i++) {
        TRY(message_get_array(reading, arena, 1, &array, &len));
        stop[i] = array;
    }
    for (size_t i = 0; i < job->n; i++) {
        TRY(message_get(reading, &prompts[i].number, sizeof prompts[i].number));
        TRY(message_get_array(reading, arena, sizeof(int32_t), &array, &prompts[i].n));
        prompts[i].ids = array;
    }
    const GenerateConfig config = {.sample = job->sample,
                                   .max_new_tokens = job->max_new_tokens,
                                   .n = 1,
                                   .seed = job->seed,
                                   .n_stop = (size_t)job->n_stop,
                                   .stop = stop,
                                   .n_stop_ids = (size_t)job->n_stop_ids,
                                   .stop_ids = &job->stop_id,
                                   .max_batch = job->max_batch,
                                   .memory = teacher->memory};
    return share_generate(teacher, prompts, (size_t)job->n, &config, &(Share){.message = answers});
}

/* ---- branches ---- */

static void write_branches(const TeacherModel *teacher, const ScoreStem *stems, size_t n, Str *message) {
    message_put(message, &(Job){.kind = JOB_BRANCHES, .teacher = teacher->number, .n = n}, sizeof(Job));
    for (size_t i = 0; i < n; i++) {
        message_put_ids(message, stems[i].ids, stems[i].n);
        message_put_count(message, stems[i].n_branches);
        for (size_t b = 0; b < stems[i].n_branches; b++) message_put_ids(message, stems[i].branches[b].ids, stems[i].branches[b].n);
    }
}

static Status share_score(const TeacherModel *teacher, const ScoreStem *stems, size_t n) {
    const size_t first = first_of(teacher->comm, n, comm_rank(teacher->comm)), end = first_of(teacher->comm, n, comm_rank(teacher->comm) + 1);
    return first < end ? score_branches(teacher->model, stems + first, end - first) : ST_OK;
}

static Status hear_scores(Comm *comm, const ScoreStem *stems, size_t n) {
    Status status = ST_OK;
    for (int rank = 1; rank < comm_size(comm) && status == ST_OK; rank++) {
        char *bytes;
        Reading reading;
        status = hear_from(comm, rank, &bytes, &reading);
        for (size_t i = first_of(comm, n, rank); i < first_of(comm, n, rank + 1); i++)
            for (size_t b = 0; b < stems[i].n_branches && status == ST_OK; b++) {
                const ScoreRow *row = &stems[i].branches[b];
                status = message_get(&reading, row->logprobs, row->n * sizeof *row->logprobs);
            }
        free(bytes);
    }
    return status;
}

Status teacher_deal_branches(const TeacherModel *teacher, const ScoreStem *stems, size_t n) {
    if (comm_size(teacher->comm) == 1) return score_branches(teacher->model, stems, n);
    Str message = {0};
    write_branches(teacher, stems, n, &message);
    Status status = say_to_all(teacher->comm, &message);
    str_release(&message);
    TRY(status);
    TRY(share_score(teacher, stems, n));
    return hear_scores(teacher->comm, stems, n);
}

static Status read_stem(Reading *reading, Arena *arena, ScoreStem *stem) {
    void *array;
    uint64_t n = 0;
    TRY(message_get_array(reading, arena, sizeof(int32_t), &array, &stem->n));
    stem->ids = array;
    TRY(message_get(reading, &n, sizeof n));
    ScoreRow *rows = n <= (uint64_t)(reading->end - reading->at) ? arena_zero(arena, MAX((size_t)n, 1) * sizeof *rows) : NULL;
    if (!rows) return status_fail(ST_RESOURCE, "out of memory for choices");
    for (size_t b = 0; b < n; b++) {
        TRY(message_get_array(reading, arena, sizeof(int32_t), &array, &rows[b].n));
        rows[b].ids = array;
        rows[b].logprobs = arena_zero(arena, MAX(rows[b].n, 1) * sizeof *rows[b].logprobs);
        if (!rows[b].logprobs) return ST_RESOURCE;
    }
    stem->branches = rows;
    stem->n_branches = (size_t)n;
    return ST_OK;
}

static Status serve_branches(const TeacherModel *teacher, const Job *job, Reading *reading, Arena *arena, Str *answers) {
    ScoreStem *stems = arena_zero(arena, MAX((size_t)job->n, 1) * sizeof *stems);
    const size_t n = (size_t)job->n, rank = (size_t)comm_rank(teacher->comm);
    if (!stems) return ST_RESOURCE;
    for (size_t i = 0; i < n; i++) TRY(read_stem(reading, arena, &stems[i]));
    TRY(share_score(teacher, stems, n));
    for (size_t i = first_of(teacher->comm, n, (int)rank); i < first_of(teacher->comm, n, (int)rank + 1); i++)
        for (size_t b = 0; b < stems[i].n_branches; b++) message_put(answers, stems[i].branches[b].logprobs, stems[i].branches[b].n * sizeof(double));
    return ST_OK;
}

/* ---- the other ranks ---- */

static Status serve_job(const TeacherModel *teacher, const Job *job, Reading *reading, Arena *arena) {
    Str answers = {0};
    if (job->kind == JOB_CHECK) return compare_models(teacher->comm, teacher->model);
    Status status = (job->kind == JOB_PROMPTS ? serve_prompts : serve_branches)(teacher, job, reading, arena, &answers);
    if (status == ST_OK) status = say_to_first(teacher->comm, &answers);
    str_release(&answers);
    return status;
}

/* The next job, whose bytes are in the arena. */
static Status hear_job(Comm *comm, Arena *arena, Job *job, Reading *reading) {
    uint64_t size;
    arena_reset(arena);
    TRY(comm_broadcast(comm, COMM_CONTROL, "length of questions", 0, &size, sizeof size));
    char *bytes = arena_alloc(arena, (size_t)size);
    if (!bytes) return ST_RESOURCE;
    TRY(comm_broadcast(comm, COMM_EXPERIENCE, "questions", 0, bytes, (size_t)size));
    *reading = (Reading){bytes, bytes + size};
    return message_get(reading, job, sizeof *job);
}

Status teacher_serve(Comm *comm, Teacher *const *teachers, size_t n) {
    Arena *arena = arena_new(0);
    Status status = arena ? ST_OK : ST_RESOURCE;
    while (status == ST_OK) {
        Job job;
        Reading reading;
        status = hear_job(comm, arena, &job, &reading);
        if (status != ST_OK || job.kind == JOB_END) break;
        ASSERT(job.teacher >= 0 && (size_t)job.teacher < n && teachers[job.teacher], "teacher %d", job.teacher);
        const TeacherModel teacher = teacher_local_model(teachers[job.teacher]);
        status = serve_job(&teacher, &job, &reading, arena);
    }
    arena_free(arena);
    return status;
}
