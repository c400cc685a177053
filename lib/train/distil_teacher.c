/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a recipe's teacher and compares its tokens with the student's. */
#include "lib/train/distil_teacher.h"

#include "lib/base/file.h"
#include "lib/train/train.h"

static Status no_such_teaching(Status status) {
    return status_hint(status, "a teacher of other tokens can still answer the prompts: distil.loss=sequence");
}

/* The first token that the two models have under another id, or that only one of them has. */
static Status compare_tokens(const Tokenizer *student, const Tokenizer *teacher, const char *dir) {
    int32_t id = tokenizer_difference(student, teacher);
    if (id < 0) return ST_OK;
    const char *ours = tokenizer_token(student, id), *theirs = tokenizer_token(teacher, id);
    status_fail(ST_CONFIG, "'distil.teacher': token %d is '%s' in '%s', '%s' in the student", (int)id, theirs ? theirs : "(none)", dir,
                ours ? ours : "(none)");
    return no_such_teaching(ST_CONFIG);
}

/* Rows of the head beyond the tokenizer, and tokens that one side added, may differ. */
static Status check_vocabulary(const char *dir, const Tokenizer *tokenizer, const Model *student, const Model *teacher) {
    int64_t ours = student->config.vocab_size, theirs = teacher->config.vocab_size;
    Tokenizer *own = NULL;
    TRY(tokenizer_load_if_any(dir, &own));
    Status status = ST_OK;
    if (own && tokenizer)
        status = compare_tokens(tokenizer, own, dir);
    else if (ours != theirs)
        status = no_such_teaching(status_fail(ST_CONFIG, "'distil.teacher': '%s' has %lld tokens, the student %lld, and a tokenizer is missing", dir,
                                              (long long)theirs, (long long)ours));
    tokenizer_free(own);
    return status;
}

bool distil_teacher_is_file(const char *teacher) { return file_exists(teacher) && !dir_exists(teacher) && !text_ends_with(teacher, ".gguf"); }

Status distil_teacher_open(const Recipe *recipe, Comm *comm, const Tokenizer *tokenizer, const Model *student, Model **teacher) {
    const char *dir = recipe->distil_teacher;
    *teacher = NULL;
    if (distil_teacher_is_file(dir))
        return status_hint(status_fail(ST_CONFIG, "'distil.teacher': '%s' is a file, but the teacher must be a model that can be asked", dir),
                           "name a model directory or a .gguf file");
    TRY(model_load(dir, &(ModelOptions){.device = student->device, .compute = student->compute, .comm = recipe_sharing(recipe, comm)}, teacher));
    return check_vocabulary(dir, tokenizer, student, *teacher);
}

void distil_teacher_say(const Recipe *recipe, const Model *teacher, RunPlan *plan) {
    char parameters[32], bytes[32];
    const ModelMemory memory = model_memory(teacher, false);
    format_number((double)params_count(&teacher->params, false), 4, parameters);
    run_plan_say(plan, "teacher: %s, %s parameters, %s", recipe->distil_teacher, parameters,
                 format_bytes((double)(memory.mapped + memory.shared + memory.weights + memory.packed), bytes));
    run_plan_text(plan, PLAN_BOTH, "teacher", recipe->distil_teacher);
}
