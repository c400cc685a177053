/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a model with its adapter and tokenizer, as most commands do. */
#include "cmd/cmd.h"

static Status check_now(const char *now) {
    if (!now || chat_reads_date(now)) return ST_OK;
    return status_fail(ST_USAGE, "--now is a date, YYYY-MM-DD or 'YYYY-MM-DD HH:MM:SS', not '%s'", now);
}

Status open_chat(const char *dir, const char *adapter, const ChatChoice *choice, OpenedModel *opened) {
    if (choice) TRY(check_now(choice->now));
    if (opened->tokenizer)
        return chat_open(dir, adapter, choice ? choice->chat_template : NULL, choice ? choice->now : NULL, opened->tokenizer, &opened->chat);
    if (!choice || !choice->chat_template) return ST_OK;
    return status_fail(ST_INPUT, "a chat template needs a tokenizer, and '%s' has none", dir);
}

Status open_model(const char *dir, const char *adapter, const char *compute, const ChatChoice *choice, OpenedModel *opened) {
    *opened = (OpenedModel){0};
    Status status =
        model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = compute_from_text(compute ? compute : "auto")}, &opened->model);
    if (status == ST_OK && adapter) status = adapter_load(opened->model, adapter, false);
    if (status == ST_OK) status = tokenizer_load_if_any(dir, &opened->tokenizer);
    if (status == ST_OK) status = open_chat(dir, adapter, choice, opened);
    if (status != ST_OK) close_model(opened);
    return status;
}

void close_model(OpenedModel *opened) {
    model_free(opened->model);
    tokenizer_free(opened->tokenizer);
    chat_close(opened->chat);
    *opened = (OpenedModel){0};
}
