# SPDX-License-Identifier: Apache-2.0
"""Makes the files of tests/fuzz/parquet, which test_containers and fuzz_parquet read: python3 tests/fuzz/parquet_fixtures.py FOLDER (pyarrow 26; not needed to build or test).

The last three are written byte by byte: lists of two levels as Hive and old Avro writers leave them, which pyarrow reads but cannot write, and INT96 times."""
import datetime
import decimal
import os
import struct
import sys

import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = sys.argv[1]


def write(name, table, **options):
    pq.write_table(table, os.path.join(FOLDER, name), **options)


def chat():
    message = pa.struct([("role", pa.string()), ("content", pa.string()), ("weight", pa.float32())])
    rows = [
        [{"role": "user", "content": "H\u00e9llo", "weight": None}, {"role": "assistant", "content": "", "weight": 0.5}],
        [], None, [{"role": "user", "content": None, "weight": 1.0}],
    ]
    return pa.table({"messages": pa.array(rows, type=pa.list_(message)), "source": pa.array(["a", "a", "b", None])})


def types():
    return pa.table({
        "b": pa.array([True, False, None, True]),
        "i32": pa.array([1, -2, 2**31 - 1, None], pa.int32()),
        "u64": pa.array([0, 2**64 - 1, 7, None], pa.uint64()),
        "f": pa.array([1.5, float("nan"), None, -2.0], pa.float32()),
        "h": pa.array([1.5, float("inf"), None, -2.0], pa.float16()),
        "d": pa.array([0.5, 1e300, -0.0, None]),
        "day": pa.array([datetime.date(1969, 12, 31), datetime.date(2024, 2, 29), None, datetime.date(1, 1, 1)]),
        "ts": pa.array([0, -1, 1700000000123456, None], pa.timestamp("us", tz="UTC")),
        "t": pa.array([0, 86399999, None, 1], pa.time32("ms")),
        "dec": pa.array([decimal.Decimal("1.05"), decimal.Decimal("-0.01"), None, decimal.Decimal("123456789.00")], pa.decimal128(20, 2)),
        "raw": pa.array([b"text", b"\xff\x00", None, b""], pa.binary()),
        "map": pa.array([[("k", 1)], [], None, [("x", None), ("y", 2)]], pa.map_(pa.string(), pa.int64())),
        "nest": pa.array([[[1, 2], []], [], None, [None, [3, None]]], pa.list_(pa.list_(pa.int64()))),
    })


def long():
    n = 300
    return pa.table({
        "id": pa.array([i * i - 50 for i in range(n)], pa.int64()),
        "s": ["prefix_%04d" % (i // 3) for i in range(n)],
        "f": pa.array([i / 4 for i in range(n)], pa.float32()),
        "flag": pa.array([i % 7 < 3 for i in range(n)]),
    })


class Long(int):
    """An i64; other whole numbers are i32."""


# Thrift's compact protocol: a structure is {field number: value}; a value is an int, bytes, a list or a structure.
def varint(n):
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def encode(value):
    if isinstance(value, int):
        return (6 if isinstance(value, Long) else 5), varint((value << 1) ^ (value >> 63))
    if isinstance(value, bytes):
        return 8, varint(len(value)) + value
    if isinstance(value, list):
        items = [encode(item) for item in value]
        return 9, bytes([15 << 4 | items[0][0]]) + varint(len(items)) + b"".join(body for _, body in items)
    out, last = b"", 0
    for field in sorted(value):
        kind, body = encode(value[field])
        out, last = out + bytes([(field - last) << 4 | kind]) + body, field
    return 12, out + b"\0"


def levels(values, width):
    body = b"".join(b"\x02" + bytes([value]) for value in values)  # runs of one
    return struct.pack("<i", len(body)) + body


def by_hand(name, schema, columns, rows):
    """columns: (type, path, entries, repetition levels, definition levels, plain bytes)"""
    out, chunks = b"PAR1", []
    for kind, path, n, reps, defs, plain in columns:
        body = (levels(reps, 1) if reps else b"") + (levels(defs, 2) if defs else b"") + plain
        header = encode({1: 0, 2: len(body), 3: len(body), 5: {1: n, 2: 0, 3: 3, 4: 3}})[1]
        size = Long(len(header + body))
        chunks.append({2: Long(len(out)), 3: {1: kind, 2: [0], 3: path, 4: 0, 5: Long(n), 6: size, 7: size, 9: Long(len(out))}})
        out += header + body
    footer = encode({1: 1, 2: schema, 3: Long(rows), 4: [{1: chunks, 2: Long(len(out)), 3: Long(rows)}]})[1]
    with open(os.path.join(FOLDER, name), "wb") as file:
        file.write(out + footer + struct.pack("<i", len(footer)) + b"PAR1")


def text(word):
    return struct.pack("<i", len(word)) + word


write("chat_snappy.parquet", chat(), compression="snappy", row_group_size=3)
write("chat_zstd_v2.parquet", chat(), compression="zstd", data_page_version="2.0", use_compliant_nested_type=False, write_page_checksum=True)
write("types_gzip.parquet", types(), compression="gzip", store_schema=False)
write("types_plain_v2.parquet", types(), compression="none", data_page_version="2.0", use_dictionary=False, store_schema=False)
encodings = {"id": "DELTA_BINARY_PACKED", "s": "DELTA_BYTE_ARRAY", "f": "BYTE_STREAM_SPLIT", "flag": "RLE"}
few = dict(use_dictionary=False, store_schema=False, write_statistics=False)
write("deltas_v2.parquet", long(), compression="none", data_page_version="2.0", data_page_size=500, column_encoding=encodings, **few)
encodings = {"id": "DELTA_BINARY_PACKED", "s": "DELTA_LENGTH_BYTE_ARRAY", "f": "PLAIN", "flag": "PLAIN"}
write("lengths.parquet", long(), compression="snappy", column_encoding=encodings, row_group_size=150, **few)
write("brotli.parquet", chat().slice(0, 1), compression="brotli", store_schema=False)

# optional group ids (LIST) { repeated int32 element }; repeated binary tags (UTF8): rows {[1, 2], ["a"]}, {null, []}, {[], ["b", "c"]}
by_hand("two_levels.parquet",
        [{3: 0, 4: b"root", 5: 2}, {3: 1, 4: b"ids", 5: 1, 6: 3}, {1: 1, 3: 2, 4: b"element"}, {1: 6, 3: 2, 4: b"tags", 6: 0}],
        [(1, [b"ids", b"element"], 4, [0, 1, 0, 0], [2, 2, 0, 1], struct.pack("<2i", 1, 2)),
         (6, [b"tags"], 4, [0, 0, 0, 1], [1, 0, 1, 1], text(b"a") + text(b"b") + text(b"c"))], 3)
# optional group messages (LIST) { repeated group array { required binary role (UTF8) } }: rows [{"role": "u"}, {"role": "a"}], []
by_hand("two_levels_group.parquet",
        [{3: 0, 4: b"root", 5: 1}, {3: 1, 4: b"messages", 5: 1, 6: 3}, {3: 2, 4: b"array", 5: 1}, {1: 6, 3: 0, 4: b"role", 6: 0}],
        [(6, [b"messages", b"array", b"role"], 3, [0, 1, 0], [2, 2, 1], text(b"u") + text(b"a"))], 2)
# required int96 at: 2000-01-01T00:00:01.5
by_hand("int96.parquet", [{3: 0, 4: b"root", 5: 1}, {1: 3, 3: 0, 4: b"at"}], [(3, [b"at"], 1, [], [], struct.pack("<qi", 1500000000, 2451545))], 1)
