/* SPDX-License-Identifier: Apache-2.0 */
/* One JSON object a line. Memory: one line. */
#include "data/containers/containers.h"

static Status read_line(RowReader *reader, Slice line, size_t number) {
    json_error_t error;
    json_t *row = json_load_row(line.data, line.len, reader->config.widen, &error);
    reader->text = line;
    if (row) return row_hand_over(reader, row, number);
    Status status = json_line_fault(reader->path, number, &error);
    return status == ST_INPUT ? row_is_bad(reader, status, number) : status;
}

static Status read_lines(RowReader *reader) {
    Lines lines;
    TRY(lines_open(&lines, reader->path));
    Slice line;
    Status status = ST_OK;
    while (status == ST_OK && !row_reader_full(reader) && lines_next(&lines, &line)) {
        if (lines.number == 1) line = without_mark(line);
        if (!is_blank(line)) status = read_line(reader, line, lines.number);
    }
    Status closed = lines_close(&lines);
    return status != ST_OK ? status : closed;
}

const Container container_jsonl = {.name = "jsonl", .endings = {".jsonl", ".ndjson"}, .packed = true, .unit = "line", .read = read_lines};
