/* SPDX-License-Identifier: Apache-2.0 */
/* A local teacher on ranks: rank 0 asks, and deals the questions to all ranks, which have the same model. The others wait for questions until rank 0
 * dismisses them. Results do not depend on the number of ranks.
 *
 *     rank 0:      TRY(teacher_deal_prompts(&model, prompts, n, &config, on_done, context)); ... TRY(teacher_dismiss(comm));
 *     other ranks: TRY(teacher_serve(comm, teachers, n_teachers));
 */
#ifndef TUNE_TEACHER_RANKS_H
#define TUNE_TEACHER_RANKS_H

#include "data/synth/teacher.h"

/* What a local teacher computes with. */
typedef struct TeacherModel {
    Comm *comm; /* NULL: one process */
    int number; /* of the teacher; the same on all ranks */
    const Model *model;
    const Tokenizer *tokenizer;
    GenerateMemory *memory;
} TeacherModel;
/* On rank 0: fails on all ranks alike, with ST_INPUT, if another rank has another model. */
Status teacher_deal_check(const TeacherModel *teacher);
/* generate() over ranks. Uses of `config` what teacher_local.c sets. on_done gets the prompts in order. */
Status teacher_deal_prompts(const TeacherModel *teacher, const Prompt *prompts, size_t n, const GenerateConfig *config, OnDone *on_done,
                            void *context);
/* score_branches() over ranks. */
Status teacher_deal_branches(const TeacherModel *teacher, const ScoreStem *stems, size_t n);
/* On rank 0: the others end. */
Status teacher_dismiss(Comm *comm);
/* On the other ranks: answers until teacher_dismiss. teachers: by number; those that are not local are NULL. */
Status teacher_serve(Comm *comm, Teacher *const *teachers, size_t n);

/* teacher_local.c */
TeacherModel teacher_local_model(const Teacher *teacher);

#endif
