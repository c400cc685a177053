/* SPDX-License-Identifier: Apache-2.0 */
/* tune chat: a conversation on the terminal. Earlier turns stay in the key/value cache, so each turn computes only its new tokens. */
#include <editline/readline.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/log.h"
#include "lib/base/system.h"
#include "cmd/app/commands.h"
#include "cmd/app/app.h"
#include "cmd/app/terminal.h"
#include "cmd/common/open.h"
#include "cmd/common/rounding.h"
#include "cmd/model/chat_url.h"
#include "cmd/common/sampling.h"

typedef struct Talk {
    const char *adapter, *compute, *url, *model, *api_key_env;
    Rounding rounding;
    ChatChoice chat;
    GenerateConfig config;
    TextList stop;
    int64_t seed, context;
    OpenedModel opened;
    ChatUrl *remote;  /* a server answers; NULL: the opened model does */
    char *system;     /* the system message; NULL: the template's default */
    json_t *messages; /* without the system message */
    Str answer;       /* the current answer so far */
    bool terminal;
} Talk;

/* ---- an answer ---- */

static void show_part(void *context, const char *text, size_t len) {
    Talk *talk = context;
    str_append_n(&talk->answer, text, len);
    print_text(text, len);
    show_result();
}

static Status show_piece(void *context, size_t prompt, int64_t sample, int32_t id, double logprob, const char *text) {
    (void)prompt, (void)sample, (void)id, (void)logprob;
    show_part(context, text, strlen(text));
    return ST_OK;
}

static Status take_answer(void *context, const Completion *completion) {
    (void)context;
    if (completion->finish == FINISH_LENGTH)
        show_line(" (cut after %zu token%s: --max-new-tokens)", completion->ids.n, plural((int64_t)completion->ids.n));
    return ST_OK;
}

static Status question_ids(const Talk *talk, json_t *messages, Ids *ids) {
    json_t *row = json_pack("{s:O}", "messages", messages);
    if (!row) return status_fail(ST_RESOURCE, "out of memory");
    ids_clear(ids);
    Status status = row_question(row, &(DataConfig){.system = talk->system, .chat = talk->opened.chat}, talk->opened.tokenizer, ids);
    json_decref(row);
    return status;
}

/* Renders `messages` to ids, and removes their oldest rounds until the ids and an answer fit into the context. */
static Status cmd_chat_fit(const Talk *talk, json_t *messages, Ids *ids) {
    int64_t room = session_max_tokens(talk->config.session) - talk->config.max_new_tokens;
    TRY(question_ids(talk, messages, ids));
    while ((int64_t)ids->n > room && json_array_size(messages) > 2) {
        json_array_remove(messages, 0);
        json_array_remove(messages, 0);
        TRY(question_ids(talk, messages, ids));
    }
    if ((int64_t)ids->n <= room) return ST_OK;
    status_fail(ST_INPUT, "the message has %zu tokens, but only %lld fit into the context", ids->n, (long long)room);
    return status_hint(ST_INPUT, "raise --context, or lower --max-new-tokens");
}

/* The same for the conversation, which stays unchanged if even its last message alone does not fit. */
static Status fitting_ids(Talk *talk, Ids *ids) {
    json_t *rest = json_copy(talk->messages);
    Status status = rest ? cmd_chat_fit(talk, rest, ids) : status_fail(ST_RESOURCE, "out of memory");
    size_t forgotten = json_array_size(talk->messages) - json_array_size(rest);
    if (status != ST_OK) {
        json_decref(rest);
        return status;
    }
    json_decref(talk->messages);
    talk->messages = rest;
    if (forgotten)
        show_line("(the oldest %zu message%s dropped: the conversation is longer than %lld token%s, see --context)", forgotten,
                  plural((int64_t)forgotten), (long long)session_max_tokens(talk->config.session), plural(session_max_tokens(talk->config.session)));
    return ST_OK;
}

static Status cmd_chat_say(json_t *messages, const char *role, const char *text) {
    json_t *message = json_pack("{s:s, s:s}", "role", role, "content", text);
    return message && json_array_append_new(messages, message) == 0 ? ST_OK : status_fail(ST_INPUT, "the message is not valid UTF-8");
}

static Status answer_remote(Talk *talk) {
    bool cut = false;
    Status status = chat_url_answer(talk->remote, talk->messages, talk->system, &talk->config, show_part, talk, &cut);
    if (cut) show_line(" (cut at the longest length: --max-new-tokens)");
    return status;
}

static Status answer_here(Talk *talk) {
    Ids ids = {0};
    Status status = fitting_ids(talk, &ids);
    size_t turn = json_array_size(talk->messages);
    if (status == ST_OK)
        status =
            generate(talk->opened.model, talk->opened.tokenizer, &(Prompt){ids.data, ids.n, turn}, 1, &talk->config, show_piece, take_answer, talk);
    ids_release(&ids);
    return status;
}

/* Answers the last message. Ctrl-C ends the answer, not the conversation: the part so far is kept. */
static Status cmd_chat_answer(Talk *talk) {
    str_clear(&talk->answer);
    Status status = talk->remote ? answer_remote(talk) : answer_here(talk);
    size_t turn = json_array_size(talk->messages);
    print_text("\n", 1);
    show_result();
    if (status == ST_INTERRUPTED && interrupt_cancel()) status = ST_OK;
    if (status == ST_OK) status = cmd_chat_say(talk->messages, "assistant", str_text(&talk->answer));
    if (status != ST_OK) json_array_remove(talk->messages, turn - 1); /* removes the question too, so that it can be asked again */
    return status;
}

/* ---- commands ---- */

static Status cmd_chat_save(const Talk *talk, const char *path) {
    json_t *all = json_array(), *row = json_pack("{s:o}", "messages", all);
    FileWriter writer;
    if (!row) return status_fail(ST_RESOURCE, "out of memory");
    Status status = talk->system ? cmd_chat_say(all, "system", talk->system) : ST_OK;
    json_array_extend(all, talk->messages);
    char *text = json_text(row, 0);
    json_decref(row);
    if (status == ST_OK && !text) status = status_fail(ST_RESOURCE, "out of memory");
    if (status == ST_OK) status = writer_open(&writer, path);
    if (status == ST_OK) {
        writer_printf(&writer, "%s\n", text);
        status = writer_commit(&writer);
    }
    free(text);
    if (status == ST_OK)
        show_line("wrote %zu message%s to %s, a training row", json_array_size(talk->messages), plural((int64_t)json_array_size(talk->messages)),
                  path);
    return status;
}

/* Sets the system message; "" removes it. */
static Status set_system(Talk *talk, const char *text) {
    if (utf8_fault(text, strlen(text)) < strlen(text)) return status_fail(ST_INPUT, "the system message is not valid UTF-8");
    free(talk->system);
    talk->system = *text ? strdup(text) : NULL;
    return *text && !talk->system ? status_fail(ST_RESOURCE, "out of memory") : ST_OK;
}

static Status take_row(void *context, const Row *row) {
    Talk *talk = context;
    json_t *messages = json_object_get(row->json, "messages");
    if (!json_is_array(messages)) return status_fail(ST_INPUT, "'%s' %s %zu has no 'messages'", row->file, row->unit, row->line);
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *message = json_array_get(messages, i);
        if (!json_is_string(json_object_get(message, "role")) || !json_is_string(json_object_get(message, "content")))
            return status_fail(ST_INPUT, "message %zu of '%s' has no 'role' and 'content'", i + 1, row->file);
    }
    json_array_clear(talk->messages);
    TRY(set_system(talk, ""));
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i);
        if (i == 0 && !strcmp(json_string_value(json_object_get(message, "role")), "system"))
            TRY(set_system(talk, json_string_value(json_object_get(message, "content"))));
        else
            json_array_append(talk->messages, message);
    }
    return ST_OK;
}

/* A file that /save wrote is a line of JSON, whatever its name. Other files are read as rows by their ending. */
static Status cmd_chat_load(Talk *talk, const char *path) {
    json_t *saved = NULL;
    Status status = json_read_file(path, &saved);
    if (status == ST_OK && json_is_object(saved) && json_is_array(json_object_get(saved, "messages")))
        status = take_row(talk, &(Row){.json = saved, .file = path, .unit = "line", .line = 1});
    else
        status = rows_read_some(path, 1, take_row, talk);
    json_decref(saved);
    TRY(status);
    show_line("%zu message%s from %s", json_array_size(talk->messages), plural((int64_t)json_array_size(talk->messages)), path);
    return ST_OK;
}

static void show_commands(void) {
    show_line(
        "/system TEXT   set the system message and start over\n/reset         start over\n/save FILE     save the conversation as a training row\n"
        "/load FILE     continue a saved conversation\n/retry         give another answer to the last question\nCtrl-C stops an answer or clears the line, Ctrl-D leaves; a line that ends with \\ continues on the next");
}

static Status retry(Talk *talk) {
    size_t n = json_array_size(talk->messages);
    const char *role = json_string_value(json_object_get(json_array_get(talk->messages, n - 1), "role"));
    bool answered = role && strcmp(role, "assistant") == 0; /* a loaded conversation may end with a question */
    if (n < 1 + (size_t)answered) return status_fail(ST_INPUT, "there is no answer to retry");
    if (answered) json_array_remove(talk->messages, n - 1);
    talk->config.seed++;
    return cmd_chat_answer(talk);
}

/* Runs a line that begins with '/'. *leave: whether it ends the conversation. */
static Status run_command(Talk *talk, const char *line, bool *leave) {
    const char *rest = line + strcspn(line, " \t");
    size_t len = (size_t)(rest - line);
    rest += strspn(rest, " \t");
    Slice name = {line, len};
    if (slice_is(name, "/quit") || slice_is(name, "/exit"))
        *leave = true;
    else if (slice_is(name, "/help"))
        show_commands();
    else if (slice_is(name, "/reset"))
        json_array_clear(talk->messages);
    else if (slice_is(name, "/retry"))
        return retry(talk);
    else if (slice_is(name, "/system")) {
        TRY(set_system(talk, rest));
        json_array_clear(talk->messages);
    } else if ((slice_is(name, "/save") || slice_is(name, "/load")) && !*rest)
        return status_fail(ST_USAGE, "%.*s needs a file", (int)len, line);
    else if (slice_is(name, "/save"))
        return cmd_chat_save(talk, rest);
    else if (slice_is(name, "/load"))
        return cmd_chat_load(talk, rest);
    else
        return status_hint(status_fail(ST_USAGE, "unknown command '%.*s'", (int)len, line), "/help lists them");
    return ST_OK;
}

/* ---- lines ---- */

static char *plain_line(void) {
    char *line = NULL;
    size_t cap = 0;
    ssize_t n = getline(&line, &cap, stdin);
    if (n < 0) {
        free(line);
        return NULL;
    }
    if (n > 0 && line[n - 1] == '\n') line[--n] = '\0';
    if (strlen(line) < (size_t)n) log_message(LOG_WARNING, "the line has a NUL character: the rest of it is ignored");
    return line;
}

/* Reads one line, or several that are joined by a backslash at the end of each but the last. On a terminal, Ctrl-C discards the input and starts
 * over. Returns NULL at the end of input or when the program must end. The caller frees the text. */
static char *read_input(const Talk *talk) {
    Str text = {0};
    while (!interrupt_requested()) {
        char *line = talk->terminal ? readline(text.len ? ". " : "> ") : plain_line();
        if (talk->terminal && interrupt_cancel()) {
            free(line);
            str_clear(&text);
            print_text("\n", 1);
            show_result();
            continue;
        }
        if (!line) break;
        size_t len = strlen(line);
        bool more = len > 0 && line[len - 1] == '\\';
        str_append_n(&text, line, len - more);
        free(line);
        if (!more) return text.data ? text.data : strdup("");
        str_append_char(&text, '\n');
    }
    if (text.len > 0 && !interrupt_requested()) {
        text.data[text.len - 1] = '\0'; /* the input ended after a backslash */
        return text.data;
    }
    str_release(&text);
    return NULL;
}

/* On a terminal, a failed answer or command is reported and the conversation continues, unless the failure is numeric, lack of a resource, or an
 * interrupt. */
static Status converse(Talk *talk) {
    bool leave = false;
    Status status = ST_OK;
    for (char *line; !leave && (line = read_input(talk)); free(line)) {
        interrupt_cancel();
        if (talk->terminal && *line) add_history(line);
        if (line[strspn(line, " \t\n")] == '\0') continue;
        if (*line == '/') {
            status = run_command(talk, line, &leave);
        } else {
            status = cmd_chat_say(talk->messages, "user", line);
            if (status == ST_OK) status = cmd_chat_answer(talk);
        }
        if (status == ST_OK) continue;
        bool ends = status == ST_NUMERIC || (status == ST_RESOURCE && !talk->remote) || (status == ST_INTERRUPTED && !interrupt_cancel());
        if (ends || !talk->terminal) {
            free(line);
            return status;
        }
        show_message("%s%s%s", status_text(), *status_hint_text() ? "\n" : "", status_hint_text());
    }
    if (talk->terminal && !leave) print_text("\n", 1);
    return interrupt_requested() ? status_fail(ST_INTERRUPTED, "interrupted") : ST_OK;
}

/* What only a model that is opened here can do. */
static Status check_remote(const Command *command, const Talk *talk) {
    const char *useless = talk->adapter                                                       ? "--adapter"
                          : talk->compute                                                     ? "--compute"
                          : talk->rounding.text                                               ? "--activations"
                          : talk->chat.chat_template || talk->chat.kwargs.n || talk->chat.now ? "the chat template"
                                                                                              : NULL;
    if (command->n_arguments > 0) return status_fail(ST_USAGE, "a MODEL is opened here, and --url asks a server: name its model with --model");
    return useless ? status_fail(ST_USAGE, "%s is the server's choice with --url", useless) : ST_OK;
}

static Status open_remote(const Command *command, Talk *talk) {
    const char *key = talk->api_key_env ? getenv(talk->api_key_env) : NULL;
    TRY(check_remote(command, talk));
    if (talk->api_key_env && !key) return status_fail(ST_USAGE, "the environment has no '%s'", talk->api_key_env);
    Status status = chat_url_open(talk->url, talk->model, key, &talk->remote);
    return status == ST_CONFIG ? ST_USAGE : status;
}

static Status open_here(const Command *command, Talk *talk) {
    TRY(command_needs(command, 1, 1));
    if (talk->model || talk->api_key_env) return status_fail(ST_USAGE, "%s needs --url", talk->model ? "--model" : "--api-key-env");
    if (talk->context < 2 || talk->context > 1 << 24) return status_fail(ST_USAGE, "--context must be 2 or more, not %lld", (long long)talk->context);
    if (talk->config.max_new_tokens >= talk->context)
        return status_fail(ST_USAGE, "--max-new-tokens must be below --context, which is %lld", (long long)talk->context);
    TRY(open_model(command->arguments[0], talk->adapter, talk->compute, &talk->chat, &talk->opened));
    TRY(rounding_choose(command, &talk->opened, false, &talk->rounding));
    const ModelConfig *config = &talk->opened.model->config;
    if (config->learned_positions) talk->context = MIN(talk->context, config->max_position_embeddings);
    if (!chat_has_template(talk->opened.chat)) {
        status_fail(ST_INPUT, "'%s' has no chat template", command->arguments[0]);
        return status_hint(ST_INPUT, "use --chat-template chatml, llama3, alpaca, plain or a file; tune generate needs no template");
    }
    TRY(chat_choice_check(&talk->chat, talk->opened.chat));
    return session_new(talk->opened.model, talk->context, &talk->config.session);
}

static Status talk_to(const Command *command, Talk *talk) {
    TRY(check_sampling(&talk->config));
    talk->config.seed = (uint64_t)talk->seed;
    talk->config.stop = talk->stop.items;
    talk->config.n_stop = talk->stop.n;
    talk->messages = json_array();
    Status status = talk->messages ? ST_OK : status_fail(ST_RESOURCE, "out of memory");
    if (status == ST_OK) status = talk->url ? open_remote(command, talk) : open_here(command, talk);
    int32_t end_of_turn = talk->opened.chat ? chat_end_of_turn(talk->opened.chat) : -1;
    talk->config.stop_ids = &end_of_turn;
    talk->config.n_stop_ids = end_of_turn >= 0;
    const char *system = talk->chat.system ? talk->chat.system : talk->opened.system;
    if (status == ST_OK && system) status = set_system(talk, system);
    if (status == ST_OK && talk->terminal)
        show_line("%s%s%s: /help for commands, Ctrl-C stops an answer, Ctrl-D leaves", talk->url ? talk->url : command->arguments[0],
                  talk->adapter ? " with " : "", talk->adapter ? talk->adapter : "");
    if (status == ST_OK) status = converse(talk);
    session_free(talk->config.session);
    chat_url_close(talk->remote);
    json_decref(talk->messages);
    free(talk->system);
    str_release(&talk->answer);
    close_model(&talk->opened);
    return status;
}

/* Echo is off while the model loads or answers, so that text typed then is shown only once, when it is read. editline looks at the terminal when
 * it is initialized, and does not edit lines on one without echo, so it is initialized before. */
static Status cmd_chat_run(const Command *command, void *context) {
    Talk *talk = context;
    talk->terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    if (talk->terminal) {
        rl_initialize();
        echo_off();
    }
    Status status = talk_to(command, talk);
    echo_on();
    return status;
}

Status cmd_chat(int argc, char **argv) {
    Talk talk = {.seed = 42,
                 .context = 8192,
                 .config = {.max_new_tokens = 512, .n = 1, .sample = {.temperature = 0.7, .top_p = 0.95, .typical_p = 1, .repetition_penalty = 1}}};
    Command command = {
        .arguments_help = "MODEL | RUN | --url URL",
        .help =
            "Talks to a model through its chat template. By default, answers are sampled at temperature 0.7 and top-p 0.95, at most 512 tokens each.\n"
            "Commands are /system TEXT, /reset, /save FILE, /load FILE and /retry; Ctrl-C stops an answer, Ctrl-D leaves. Without a terminal each line of stdin is a question.\n"
            "RUN is the output of a run: its trained model, with its system message. --url asks a server with OpenAI's chat completions, such as tune serve.\n"
            "    tune chat models/smollm2 --adapter runs/sft/adapter --system 'You are brief.'",
    };
    const Option options[] = {
        {"--adapter", OPTION_TEXT, &talk.adapter, "DIR", "PEFT adapter to use"},
        {"--url", OPTION_TEXT, &talk.url, "URL", "ask this server instead of a model here: http://127.0.0.1:8000"},
        {"--model", OPTION_TEXT, &talk.model, "NAME", "with --url: the server's model"},
        {"--api-key-env", OPTION_TEXT, &talk.api_key_env, "VARIABLE", "with --url: the environment variable with the server's key"},
        {"--compute", OPTION_TEXT, &talk.compute, "auto|f32|bf16", "precision of matrix products"},
        ACTIVATIONS_OPTION(talk.rounding),
        CHAT_OPTIONS(talk.chat),
        SAMPLING_OPTIONS(talk.config, talk.stop),
        {"--context", OPTION_INT, &talk.context, "N", "longest conversation in tokens; older messages are dropped (8192)"},
        {"--seed", OPTION_INT, &talk.seed, "N", "seed of the random choices (42)"},
        {0},
    };
    return command_main(&command, argc, argv, options, cmd_chat_run, &talk);
}
