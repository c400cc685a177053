/* SPDX-License-Identifier: Apache-2.0 */
/* Python code for using a reward model elsewhere with the same scores. */
#include "rl/pairs/reward_training.h"

/* Appends a Python string literal. */
static void quote(Str *text, const char *path, const char *part) {
    str_append_char(text, '\'');
    for (; *path; path++) str_printf(text, "%s%c", *path == '\'' || *path == '\\' ? "\\" : "", *path);
    str_printf(text, "%s'", part);
}

static void name_tokenizer(const Recipe *recipe, Str *text) {
    str_append(text, "tokenizer = AutoTokenizer.from_pretrained(");
    quote(text, recipe->has_lora ? recipe->model_path : recipe->output, recipe->has_lora ? "" : "/model");
    str_append(text, ")\n");
    if (!recipe->has_lora || !recipe->model_chat_template) return;
    str_append(text, "tokenizer.chat_template = open(");
    quote(text, recipe->output, "/adapter/chat_template.jinja");
    str_append(text, ").read()\n");
}

void reward_use(const Recipe *recipe, const ModelConfig *config, Str *text) {
    name_tokenizer(recipe, text);
    str_append(text, "model = AutoModelForSequenceClassification.from_pretrained(");
    quote(text, recipe->has_lora ? recipe->model_path : recipe->output, recipe->has_lora ? "" : "/model");
    str_append(text, ", num_labels=1)\n");
    if (recipe->has_lora) {
        str_append(text, "model = PeftModel.from_pretrained(model, ");
        quote(text, recipe->output, "/adapter");
        str_append(text, ")\n");
    }
    str_append(text, "conversations: model(**tokenizer.apply_chat_template(messages, return_tensors='pt', return_dict=True)).logits\n"
                     "texts: model(**tokenizer(prompt + answer + tokenizer.eos_token, return_tensors='pt')).logits");
    if (!config->has_pad)
        str_append(
            text,
            "\nconfig.json has no pad_token_id: for several rows at once set model.config.pad_token_id to tokenizer.pad_token_id, and that to no "
            "token which ends a row");
}
