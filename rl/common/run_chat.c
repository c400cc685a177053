/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenizer, chat template and date of a run on text. */
#include "rl/common/run_chat.h"

Status run_chat_open(const Recipe **recipe, bool resume, Recipe *dated, Tokenizer **tokenizer, Chat **chat) {
    const Recipe *r = *recipe;
    const char *day;
    TRY(tokenizer_load_if_any(r->model_path, tokenizer));
    TRY(chat_open_recipe(r, *tokenizer, chat));
    TRY(chat_check_now(r, *chat));
    if (r->data_now || !chat_writes_date(*chat)) return ST_OK;
    TRY(recipe_day(r, resume, &day));
    TRY(chat_set_now(*chat, day));
    *dated = recipe_dated(r, day);
    *recipe = dated;
    return ST_OK;
}
