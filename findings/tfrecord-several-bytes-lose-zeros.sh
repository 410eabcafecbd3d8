#!/usr/bin/env bash
# A good guess: a feature with several bytes values comes back as they were written.
# What happens instead: tfrecord_loader makes np.array(values, dtype=bytes) of several values, and numpy drops zero bytes at the end of each.
# One value keeps them. The file has all bytes: tfrecord's own messages give them.
# tfrecord 1.14.6
# Output seen: one value: b'a\x00' several: [b'a', b'b'] in the file: [b'a\x00', b'b\x00\x00']
# Who meets it: binary values in lists, such as encoded arrays or hashes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q tfrecord==1.14.6 crc32c==2.9.post0 protobuf numpy
cat > "$folder/script.py" <<'PYTHON'
import sys

from tfrecord import TFRecordWriter, example_pb2, tfrecord_loader
from tfrecord.reader import tfrecord_iterator

path = sys.argv[1]
writer = TFRecordWriter(path)
writer.write({"one": ([b"a\0"], "byte"), "two": ([b"a\0", b"b\0\0"], "byte")})
writer.close()
(found,) = tfrecord_loader(path, None)
(record,) = (bytes(each) for each in tfrecord_iterator(path))
kept = list(example_pb2.Example.FromString(record).features.feature["two"].bytes_list.value)
print("one value:", found["one"], "several:", found["two"].tolist(), "in the file:", kept)
if not (found["one"] == b"a\0" and found["two"].tolist() == [b"a", b"b"] and kept == [b"a\0", b"b\0\0"]):
    sys.exit("the behaviour changed")
PYTHON
"$folder/venv/bin/python" "$folder/script.py" "$folder/a.tfrecord"
