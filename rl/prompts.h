/* The prompts that a policy on text is asked, with the data rows that they come from: rewards look into these for the answer. */
#ifndef TUNE_PROMPTS_H
#define TUNE_PROMPTS_H

#include "data/data.h"

typedef struct PromptRow {
    Ids ids;
    json_t *json;          /* the row, with its other columns */
    const char *file;
    const char *unit;      /* "line", "row" */
    size_t line;
} PromptRow;
typedef struct PromptSet {
    PromptRow *items;
    size_t n, cap;
    int64_t longest;       /* tokens */
    int64_t dropped, cut;  /* rows that were too long, by data.truncation */
    Arena *arena;          /* file names */
} PromptSet;

/* All rows of data.train (or of `node`, named `key`) as questions, see row_question. Rows longer than data.max_length are treated as data.truncation says. ST_INPUT with file and line; ST_CONFIG; the caller
 * calls prompts_free in any case. */
Status prompts_read(YamlNode node, const char *key, const Recipe *recipe, const ModelConfig *model, const Chat *chat, const Tokenizer *tokenizer, PromptSet *set);
void prompts_free(PromptSet *set);
/* A number that other prompts would hardly have: of all ids and rows, in order. */
uint64_t prompts_fingerprint(const PromptSet *set);

#endif
