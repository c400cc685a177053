/* SPDX-License-Identifier: Apache-2.0 */
/* Names of roles: other tools use other names for what templates call user, assistant, system and tool. */
#include "data/formats/message.h"

#include <string.h>
#include <strings.h>

static const char *const standard[] = {"user", "assistant", "system", "tool", "developer"};

static const struct {
    const char *name, *role;
} others[] = {
    {"human", "user"},
    {"prompter", "user"},
    {"usr", "user"},
    {"gpt", "assistant"},
    {"chatgpt", "assistant"},
    {"bing", "assistant"},
    {"bard", "assistant"},
    {"claude", "assistant"},
    {"gemini", "assistant"},
    {"model", "assistant"},
    {"bot", "assistant"},
    {"chatbot", "assistant"},
    {"ai", "assistant"},
    {"llm", "assistant"},
    {"sys", "system"},
    {"system_prompt", "system"},
    {"function", "tool"},
    {"observation", "tool"},
    {"ipython", "tool"},
    {"function_response", "tool"},
    {"tool_response", "tool"},
    {"tool_result", "tool"},
    {"function_call", "function_call"},
    {"tool_call", "function_call"},
};

const char *role_known(const char *name) {
    for (size_t i = 0; i < COUNT_OF(standard); i++)
        if (strcasecmp(standard[i], name) == 0) return standard[i];
    for (size_t i = 0; i < COUNT_OF(others); i++)
        if (strcasecmp(others[i].name, name) == 0) return others[i].role;
    return NULL;
}

const char *role_nearest(const char *name) { return text_nearest(name, standard, COUNT_OF(standard)); }

/* Every template with tools contains "function", as the type of a tool; answers are always the assistant's, or nothing would be trained. */
static bool kept(const Chat *chat, const char *name, const char *role) {
    return strcmp(role, "assistant") != 0 && strcmp(name, "function") != 0 && template_names(chat, name);
}

const char *role_for(const Chat *chat, const char *name) {
    const char *role = role_known(name);
    if (!role) return name;
    if (strcmp(role, name) != 0 && kept(chat, name, role)) return name;
    bool no_developer = strcmp(role, "developer") == 0 && chat_has_template(chat) && !template_names(chat, role);
    return no_developer ? "system" : role;
}
