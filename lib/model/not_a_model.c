/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/model/not_a_model.h"

#include <string.h>

bool is_hub_name(const char *name) {
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t org = strspn(name, allowed), model = name[org] == '/' ? strspn(name + org + 1, allowed) : 0;
    return org > 0 && model > 0 && !name[org + 1 + model] && name[0] != '.' && name[org + 1] != '.';
}

/* runs/x is a path if there is a folder runs. */
static bool may_be_at_hub(const char *dir) {
    Str org = {0};
    if (!is_hub_name(dir)) return false;
    str_append_n(&org, dir, strcspn(dir, "/"));
    bool path = dir_exists(str_text(&org));
    str_release(&org);
    return !path;
}

Status hint_no_directory(Status status, const char *dir, const char *what) {
    if (!may_be_at_hub(dir)) return status_hint(status, "%s, on this machine; nothing is downloaded", what);
    return status_hint(status,
                       "nothing is downloaded here: `hf download %s` puts the model of that name into the Hugging Face cache, where it is found (pip "
                       "install huggingface_hub); else give a path: %s",
                       dir, what);
}

/* ---- other files ---- */

typedef struct Stranger {
    const char *begin, *end; /* of the file's name */
    const char *hint;        /* %s: the directory */
} Stranger;
static const Stranger strangers[] = {
    {"pytorch_model", ".bin",
     "its weights are pytorch_model.bin, which is not supported: python3 -c \"from transformers import "
     "AutoModelForCausalLM as M; M.from_pretrained('%s').save_pretrained('%s')\" adds model.safetensors"},
    {"pytorch_model", ".index.json",
     "its weights are pytorch_model-*.bin, which is not supported: python3 -c \"from transformers import "
     "AutoModelForCausalLM as M; M.from_pretrained('%s').save_pretrained('%s')\" adds safetensors"},
    {"", ".gguf", "it contains a GGUF file: name that file instead of the directory"},
    {"consolidated", ".pth",
     "its weights are Meta's consolidated.*.pth: take the directory of the same model that is made for transformers (its name often ends in -hf)"},
    {"consolidated", ".safetensors", "its weights are Mistral's consolidated.safetensors: take model*.safetensors and config.json of the same model"},
    {"tf_model", ".h5", "its weights are TensorFlow's: take model.safetensors of the same model"},
    {"flax_model", ".msgpack", "its weights are Flax's: take model.safetensors of the same model"},
    {"model", ".onnx", "it is an ONNX model: take model.safetensors of the same model"},
    {"", ".incomplete", "a download is incomplete: run it again, it continues where it stopped"},
};

static const Stranger *find_stranger(char **files, size_t n) {
    for (size_t i = 0; i < COUNT_OF(strangers); i++)
        for (size_t k = 0; k < n; k++)
            if (text_starts_with(files[k], strangers[i].begin) && text_ends_with(files[k], strangers[i].end)) return &strangers[i];
    return NULL;
}

Status hint_other_files(Status status, const char *dir) {
    Failure failure;
    char **files = NULL;
    size_t n = 0;
    failure_save(&failure, status);
    Arena *arena = arena_new(0);
    const Stranger *stranger = arena && dir_list(dir, arena, &files, &n) == ST_OK ? find_stranger(files, n) : NULL;
    failure_restore(&failure);
    if (stranger) {
        Str text = {0};
        for (const char *at = stranger->hint; *at; at++) {
            bool place = at[0] == '%' && at[1] == 's';
            if (place)
                str_append(&text, dir);
            else
                str_append_char(&text, *at);
            at += place;
        }
        status_hint(status, "%s", str_text(&text));
        str_release(&text);
    } else if (n == 0)
        status_hint(status, "the directory is empty: " A_MODEL);
    else
        status_hint(status, A_MODEL);
    arena_free(arena);
    return status;
}

/* ---- broken files ---- */

Status hint_download_again(Status status, const char *path) {
    return status_hint(status, "the file '%s' is cut off or was changed: copy or download it again, and compare its size with the original's",
                       path_name(path));
}
