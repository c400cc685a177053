/* SPDX-License-Identifier: Apache-2.0 */
/* Plays multi-turn text episodes. */
#include "lib/base/log.h"
#include "lib/base/system.h"
#include "rl/text/turns.h"

#include <stdlib.h>
#include <string.h>

#include "data/formats/conversation.h"

/* What an episode waits for. */
typedef enum EpisodeState {
    EPISODE_READY,  /* for room to speak */
    EPISODE_SPEAKS, /* for the end of its turn */
    EPISODE_SPOKE,  /* for an idle environment */
    EPISODE_ASKED,  /* for the environment's answer */
    EPISODE_OVER
} EpisodeState;

/* One episode in one copy of the environment. Arrays cover the tokens after the prompt. */
typedef struct Episode {
    Ids ids; /* the prompt and all later tokens */
    size_t n_prompt, cap;
    double *sampled, *filtered, *earned;
    bool *trained;
    Str text, action;        /* text: of all turns; action: of the current turn */
    double reward, discount; /* discount: of the next turn's reward */
    EpisodeState state;
    int64_t turn;
    bool lost, ended; /* lost: the environment no longer knows it, so it ends with its turn */
} Episode;

typedef struct Play {
    Turns *turns;
    const GenerateConfig *config;
    DataConfig data;
    uint64_t number;  /* of the first group */
    size_t first_row; /* its prompt among those of turns */
    Generator *generator;
    Episode *episodes;
    int64_t n;
    Slice *actions;
    bool asked; /* the environment has a request */
} Play;

/* ---- observations to tokens ---- */

/* The messages of an observation, as a new list. `row`: an object that may have tools, borrowed. */
static Status messages_of(const Play *play, const json_t *observation, const char *system, json_t **messages, const json_t **row) {
    json_t *list;
    *row = json_is_object(observation) && json_object_get(observation, "messages") ? observation : NULL;
    if (*row)
        list = json_incref(json_object_get(*row, "messages"));
    else if (json_is_string(observation))
        list = json_pack("[{s:s, s:O}]", "role", "user", "content", observation);
    else
        list = json_is_array(observation) ? json_incref((json_t *)(uintptr_t)observation) : json_pack("[O]", observation);
    if (!list) return status_fail(ST_RESOURCE, "out of memory");
    DataConfig config = play->data;
    config.system = system;
    Status status = messages_normalize(list, NULL, &config, messages);
    json_decref(list);
    return status == ST_OK || status == ST_RESOURCE ? status : status_prefix(status, "environment '%s'", text_env_id(play->turns->env));
}

static bool uses_template(const Play *play) { return play->turns->chat && chat_has_template(play->turns->chat); }

/* Without a chat template an observation is plain text. */
static Status plain_text(const Play *play, const json_t *observation, const char **text) {
    *text = json_string_value(observation);
    if (*text) return ST_OK;
    status_fail(ST_INPUT, "environment '%s' answers with messages, but the model has no chat template", text_env_id(play->turns->env));
    return status_hint(ST_INPUT, "set model.chat_template, or let the environment answer with texts");
}

static Status first_ids(const Play *play, const json_t *observation, Ids *ids) {
    const Turns *turns = play->turns;
    const json_t *row;
    const char *text;
    json_t *messages;
    if (!uses_template(play)) {
        TRY(plain_text(play, observation, &text));
        return encode_prompt(turns->tokenizer, text, strlen(text), ids);
    }
    TRY(messages_of(play, observation, turns->recipe->data_system, &messages, &row));
    Status status = encode_question(messages, row, &play->data, turns->tokenizer, ids);
    json_decref(messages);
    return status;
}

/* A template that does not know a role drops its messages, and the policy never sees them: warn once. */
static void warn_of_unwritten(Turns *turns, const json_t *messages, const char *text) {
    for (size_t i = 0; i < json_array_size(messages) && !turns->observations_unwritten; i++) {
        const json_t *message = json_array_get(messages, i), *content = json_object_get(message, "content");
        Str words = {0};
        str_append_n(&words, json_string_value(content), json_string_length(content));
        const char *begin = str_text(&words) + strspn(str_text(&words), " \t\r\n");
        size_t plain = strcspn(begin, "\"'\\<>&\t\r\n"); /* compare only up to characters that templates may escape */
        while (plain > 0 && begin[plain - 1] == ' ') plain--;
        if (words.data) words.data[(size_t)(begin - words.data) + plain] = '\0';
        turns->observations_unwritten = *begin && !strstr(text, begin);
        if (turns->observations_unwritten)
            log_message(LOG_WARNING, "environment '%s': the chat template leaves out messages of role '%s': the policy does not see them",
                        text_env_id(turns->env), json_string_value(json_object_get(message, "role")));
        str_release(&words);
    }
}

/* The template's output between an answer's end-of-turn token and the next answer: renders the conversation after a known answer and takes the text
 * after that answer's end. */
static Status render_between(const Play *play, json_t *messages, const json_t *row, Str *text) {
    static const char answer[] = "Zq7answer";
    const Chat *chat = play->turns->chat;
    json_t *whole = json_pack("[{s:s, s:s}, {s:s, s:s}]", "role", "user", "content", "a", "role", "assistant", "content", answer);
    ChatRendering rendering = {0};
    if (!whole) return status_fail(ST_RESOURCE, "out of memory");
    json_array_extend(whole, messages);
    Status status = messages_render(chat, whole, json_array_size(whole), row, true, &rendering);
    const char *at = status == ST_OK ? strstr(str_text(&rendering.text), answer) : NULL,
               *end = at && chat_end_text(chat) ? strstr(at, chat_end_text(chat)) : NULL;
    if (at) at = end ? end + strlen(chat_end_text(chat)) : at + strlen(answer);
    if (at)
        str_append(text, at);
    else if (status == ST_OK)
        status = status_fail(ST_INPUT, "the chat template leaves out the answer before the last message");
    if (status == ST_OK) warn_of_unwritten(play->turns, messages, at);
    chat_rendering_release(&rendering);
    json_decref(whole);
    return status;
}

static Status text_between(const Play *play, const json_t *observation, Str *text) {
    const json_t *row;
    const char *plain;
    json_t *messages;
    if (!uses_template(play)) {
        TRY(plain_text(play, observation, &plain));
        str_append(text, plain);
        return ST_OK;
    }
    TRY(messages_of(play, observation, NULL, &messages, &row));
    Status status = render_between(play, messages, row, text);
    json_decref(messages);
    return status;
}

/* ---- episodes ---- */

static Status turns_reserve(Episode *episode, size_t n) {
    if (n <= episode->cap) return ST_OK;
    size_t cap = MAX(n, 2 * episode->cap);
    double **const reals[] = {&episode->sampled, &episode->filtered, &episode->earned};
    for (size_t i = 0; i < COUNT_OF(reals); i++) TRY(array_resize(reals[i], cap, sizeof **reals[i], "tokens of an episode"));
    TRY(array_resize(&episode->trained, cap, sizeof *episode->trained, "tokens of an episode"));
    episode->cap = cap;
    return ST_OK;
}

/* sampled NULL: tokens of the environment, not of the policy. */
static Status add_token(Episode *episode, int32_t id, const double *sampled, const double *filtered) {
    size_t t = episode->ids.n - episode->n_prompt;
    TRY(turns_reserve(episode, t + 1));
    ids_push(&episode->ids, id);
    episode->sampled[t] = sampled ? *sampled : 0;
    episode->filtered[t] = filtered ? *filtered : 0;
    episode->earned[t] = 0;
    episode->trained[t] = sampled != NULL;
    return ST_OK;
}

static void text_turns_release(Episode *episode) {
    ids_release(&episode->ids);
    str_release(&episode->text);
    str_release(&episode->action);
    free(episode->sampled);
    free(episode->filtered);
    free(episode->earned);
    free(episode->trained);
}

/* Whether the model has fewer positions than data.max_length. */
static bool positions_bind(const Play *play) { return play->data.positions > 0 && play->data.positions < play->turns->recipe->data_max_length; }

static int64_t longest_episode(const Play *play) { return positions_bind(play) ? play->data.positions : play->turns->recipe->data_max_length; }

/* Whether another turn fits after n tokens. */
static bool has_room(const Play *play, size_t n) { return (int64_t)n + play->config->max_new_tokens <= longest_episode(play); }

static Status too_long(const Play *play, size_t n) {
    bool positions = positions_bind(play);
    status_fail(ST_INPUT, "environment '%s' starts with %zu tokens, which with generate.max_new_tokens %lld are more than %s %lld",
                text_env_id(play->turns->env), n, (long long)play->config->max_new_tokens, positions ? "the model's positions," : "data.max_length",
                (long long)longest_episode(play));
    return status_hint(ST_INPUT, positions ? "lower generate.max_new_tokens, or use a model with more positions"
                                           : "raise data.max_length: it limits an episode with all its turns");
}

/* The row of a group's first observation, which samples.jsonl and rewards use as the prompt. */
static Status keep_prompt(Play *play, const json_t *observation, Ids *ids, const PromptRow **kept) {
    Turns *turns = play->turns;
    Str text = {0};
    ASSERT(turns->n_rows < turns->cap_rows, "room for %zu prompts", turns->cap_rows);
    Status status = tokenizer_decode(turns->tokenizer, ids->data, ids->n, false, &text);
    json_t *json = status == ST_OK ? json_pack("{s:s, s:O}", "prompt", str_text(&text), "observation", observation) : NULL;
    str_release(&text);
    TRY(status);
    if (!json) return status_fail(ST_RESOURCE, "out of memory");
    PromptRow *row = &turns->rows[turns->n_rows++];
    *row = (PromptRow){.ids = *ids, .json = json, .file = text_env_id(turns->env), .unit = "episode", .line = turns->n_rows};
    *kept = row;
    return ST_OK;
}

static Status begin_group(Play *play, int64_t group) {
    const json_t *observation = text_env_turn(play->turns->env, group * play->config->n)->observation;
    const PromptRow *row = NULL;
    Ids ids = {0};
    for (int64_t k = 1; k < play->config->n; k++) {
        if (json_equal(observation, text_env_turn(play->turns->env, group * play->config->n + k)->observation)) continue;
        status_fail(ST_INPUT, "environment '%s' gives different observations for the same seed", text_env_id(play->turns->env));
        return status_hint(ST_INPUT, "an episode must depend on the seed of its reset only, since groups of episodes are compared");
    }
    Status status = first_ids(play, observation, &ids);
    if (status == ST_OK && !has_room(play, ids.n)) status = too_long(play, ids.n);
    if (status == ST_OK) status = keep_prompt(play, observation, &ids, &row);
    if (status != ST_OK) {
        ids_release(&ids);
        return status;
    }
    for (int64_t k = 0; k < play->config->n; k++) {
        Episode *episode = &play->episodes[group * play->config->n + k];
        *episode = (Episode){.n_prompt = row->ids.n, .discount = 1};
        for (size_t t = 0; t < row->ids.n; t++) ids_push(&episode->ids, row->ids.data[t]);
    }
    return ST_OK;
}

/* ---- what the environment answers ---- */

/* Appends the next observation. An answer that was truncated or ended by a stop text first gets the template's end of turn.
 */
static Status turns_hear(Play *play, Episode *episode, const json_t *observation) {
    const Turns *turns = play->turns;
    int32_t end = uses_template(play) ? chat_end_of_turn(turns->chat) : -1;
    bool closes = end >= 0 && episode->ids.data[episode->ids.n - 1] != end;
    Str text = {0};
    Ids ids = {0};
    Status status = text_between(play, observation, &text);
    if (status == ST_OK) status = tokenizer_encode(turns->tokenizer, str_text(&text), text.len, TOKENIZE_PLAIN, &ids);
    if (status == ST_OK && has_room(play, episode->ids.n + ids.n + closes)) {
        episode->state = EPISODE_READY;
        if (closes) status = add_token(episode, end, NULL, NULL);
        for (size_t t = 0; t < ids.n && status == ST_OK; t++) status = add_token(episode, ids.data[t], NULL, NULL);
        str_append_n(&episode->text, str_text(&text), text.len);
    }
    ids_release(&ids);
    str_release(&text);
    return status;
}

/* The reward of a turn, and the next one, if there is one. */
static Status end_turn(Play *play, Episode *episode, const TextTurn *answer) {
    episode->reward += episode->discount * answer->reward;
    episode->earned[episode->ids.n - episode->n_prompt - 1] = episode->discount * answer->reward; /* the reward, at the turn's last token */
    episode->discount *= play->turns->gamma;
    episode->ended = answer->terminated;
    episode->state = EPISODE_OVER;
    bool last = ++episode->turn == text_env_max_turns(play->turns->env);
    return answer->terminated || answer->truncated || last ? ST_OK : turns_hear(play, episode, answer->observation);
}

static Status end_lost(Play *play, Episode *episode) { return end_turn(play, episode, &(TextTurn){.truncated = true}); }

/* Sends the actions of all turns that have ended. */
static Status turns_ask(Play *play) {
    bool any = false;
    if (play->asked) return ST_OK;
    for (int64_t i = 0; i < play->n; i++) {
        Episode *episode = &play->episodes[i];
        bool spoke = episode->state == EPISODE_SPOKE;
        play->actions[i] = spoke ? (Slice){str_text(&episode->action), episode->action.len} : (Slice){0};
        if (spoke) episode->state = EPISODE_ASKED;
        any |= spoke;
    }
    play->asked = any;
    return any ? text_env_begin(play->turns->env, play->actions, play->n) : ST_OK;
}

static Status turns_listen(Play *play, bool wait) {
    TextAnswer answer;
    if (!play->asked) return ST_OK;
    TRY(text_env_answer(play->turns->env, wait, &answer));
    play->asked = answer == TEXT_NONE;
    for (int64_t i = 0; i < play->n; i++) {
        Episode *episode = &play->episodes[i];
        if (answer == TEXT_TURNS && episode->state == EPISODE_ASKED) TRY(end_turn(play, episode, text_env_turn(play->turns->env, i)));
        if (answer != TEXT_LOST) continue;
        episode->lost = true;
        if (episode->state == EPISODE_ASKED || episode->state == EPISODE_SPOKE) TRY(end_lost(play, episode));
    }
    return ST_OK;
}

/* ---- what the policy says ---- */

static Status turns_take(void *context, Completion *c) {
    Play *play = context;
    Episode *episode = &play->episodes[c->prompt + (size_t)c->sample];
    if (c->finish == FINISH_FAILED) return c->status;
    for (size_t t = 0; t < c->ids.n; t++) TRY(add_token(episode, c->ids.data[t], &c->tempered[t], &c->filtered[t]));
    str_clear(&episode->action);
    str_append_n(&episode->action, str_text(&c->text), c->text.len);
    str_append_n(&episode->text, str_text(&c->text), c->text.len);
    play->turns->played++;
    episode->state = EPISODE_SPOKE;
    return episode->lost ? end_lost(play, episode) : ST_OK;
}

/* A turn of an episode, or the first turn of all n episodes of its group, whose prompt is computed once. */
static GenerateRequest turn_request(Play *play, int64_t i, int64_t n) {
    const GenerateConfig *config = play->config;
    const Episode *episode = &play->episodes[i];
    const Ids *ids = episode->turn == 0 ? &play->turns->rows[play->first_row + (size_t)(i / config->n)].ids : &episode->ids;
    return (GenerateRequest){.prompt = {ids->data, ids->n, play->number * (uint64_t)config->n + (uint64_t)i},
                             .prompt_index = (size_t)i,
                             .n_samples = n,
                             .seed = rng_u64(rng_key(config->seed, RNG_SAMPLE, (uint64_t)episode->turn), 1),
                             .sample = config->sample,
                             .max_new_tokens = config->max_new_tokens,
                             .n_stop = config->n_stop,
                             .stop = config->stop,
                             .n_stop_ids = config->n_stop_ids,
                             .stop_ids = config->stop_ids,
                             .ignore_eos = config->ignore_eos,
                             .on_done = turns_take,
                             .context = play};
}

/* Adds turns while there is room. */
static Status turns_speak(Play *play) {
    for (int64_t i = 0; i < play->n; i++) {
        if (play->episodes[i].state != EPISODE_READY) continue;
        int64_t n = play->episodes[i].turn == 0 ? play->config->n : 1;
        GenerateRequest request = turn_request(play, i, n);
        GenerateHandle handle;
        TRY(generator_add(play->generator, &request, &handle));
        if (!handle) return ST_OK;
        for (int64_t k = 0; k < n; k++) play->episodes[i + k].state = EPISODE_SPEAKS;
    }
    return ST_OK;
}

/* The environment answers while other episodes speak. What an episode says depends on its own seeds alone, and not on who comes first. */
static Status play_turns(Play *play) {
    while (true) {
        TRY(turns_speak(play));
        TRY(turns_ask(play));
        bool busy = generator_busy(play->generator);
        if (!busy && !play->asked) return ST_OK;
        if (interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted");
        if (busy) TRY(generator_step(play->generator));
        TRY(turns_listen(play, !busy));
    }
}

/* ---- all episodes ---- */

static Status text_turns_begin(Play *play, int64_t n_groups) {
    uint64_t *seeds = malloc((size_t)play->n * sizeof *seeds);
    if (!seeds) return status_fail(ST_RESOURCE, "out of memory for %lld episodes", (long long)play->n);
    RngKey key = rng_key(play->config->seed, RNG_NOISE, 0);
    for (int64_t i = 0; i < play->n; i++) seeds[i] = rng_u64(key, play->number + (uint64_t)(i / play->config->n)) >> 33;
    Status status = text_env_reset(play->turns->env, seeds, play->n);
    free(seeds);
    for (int64_t g = 0; g < n_groups && status == ST_OK; g++) status = begin_group(play, g);
    return status;
}

static Status collect(const Play *play, Experience *e) {
    experience_clear(e, play->config->n);
    for (int64_t i = 0; i < play->n; i++) {
        const Episode *episode = &play->episodes[i];
        if (i % play->config->n == 0) TRY(experience_open_group(e, &play->turns->rows[play->first_row + (size_t)(i / play->config->n)]));
        TRY(experience_add(e, &(NewSequence){.ids = episode->ids.data + episode->n_prompt,
                                             .sampled = episode->sampled,
                                             .filtered = episode->filtered,
                                             .trained = episode->trained,
                                             .earned = episode->earned,
                                             .n = episode->ids.n - episode->n_prompt,
                                             .text = {str_text(&episode->text), episode->text.len},
                                             .ended = episode->ended,
                                             .reward = episode->reward}));
    }
    return ST_OK;
}

static Status play_all(Play *play, int64_t n_groups, Experience *e) {
    const Turns *turns = play->turns;
    GeneratorConfig size = generator_size(turns->model, play->n, longest_episode(play), play->config);
    size.keep_prefixes = true; /* a turn begins with the turns before it */
    TRY(text_turns_begin(play, n_groups));
    TRY(generator_open(turns->model, turns->tokenizer, &size, &play->generator));
    Status status = play_turns(play);
    generator_close(play->generator);
    return status == ST_OK ? collect(play, e) : status;
}

Status turns_sample(Turns *turns, int64_t n_groups, uint64_t number, const GenerateConfig *config, Experience *e) {
    size_t n = (size_t)(n_groups * config->n);
    Play play = {.turns = turns,
                 .config = config,
                 .data = data_config(turns->recipe, &turns->model->config, turns->chat),
                 .number = number,
                 .first_row = turns->n_rows,
                 .n = (int64_t)n};
    play.episodes = calloc(n, sizeof *play.episodes);
    play.actions = malloc(n * sizeof *play.actions);
    Status status = play.episodes && play.actions ? ST_OK : status_fail(ST_RESOURCE, "out of memory for %zu episodes", n);
    if (status == ST_OK) status = play_all(&play, n_groups, e);
    for (size_t i = 0; i < n && play.episodes; i++) text_turns_release(&play.episodes[i]);
    free(play.episodes);
    free(play.actions);
    return status;
}

static void clear(Turns *turns) {
    for (size_t i = 0; i < turns->n_rows; i++) {
        ids_release(&turns->rows[i].ids);
        json_decref(turns->rows[i].json);
    }
    turns->n_rows = 0;
    turns->played = 0;
}

Status turns_begin(Turns *turns, size_t n) {
    clear(turns);
    if (n <= turns->cap_rows) return ST_OK;
    TRY(array_resize(&turns->rows, n, sizeof *turns->rows, "prompts"));
    turns->cap_rows = n;
    return ST_OK;
}

void turns_release(Turns *turns) {
    clear(turns);
    free(turns->rows);
    *turns = (Turns){0};
}
