#pragma once
// Journal records as bytes and as JSON: visitors of VisitFields (core/base/journal_records.h), so a new
// field of a record is stored, read and shown without a change here. Pure functions; thread-safe.
//
// Bytes: fields in their order; numbers little-endian, enums and flags one byte, SampleId {ordinal i64,
// issue i32, sample i32}, Version {lineage i32, number i64}, WorkerRef {worker i64, inc i64}, ids i64;
// strings {u32 length, bytes}; lists {u32 count, items}. A record may end before its last fields (it is
// from an older program): those keep their defaults.
//
// JSON: {"lsn", "ctl_epoch", "mono_ns", "kind": "STEP_COMMIT", "time" (UTC, where it
// is known), then every field by its name}. SampleId
// {"ordinal","issue","sample"}; Version {"lineage","number"}; a WorkerRef called `worker` is "w" and
// "inc" beside the other fields, one of another name is an object {"w","inc"}; enums their names; 64-bit
// digests hexadecimal strings (JSON readers round large numbers); ids numbers, -1 for none; `rewards` an
// object name -> value; a number that is not finite is the string "nan", "inf" or "-inf". FAULT's class
// is called "class".

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "core/base/journal_records.h"
#include "core/base/status.h"
#include "core/storage/journal.h"

namespace tidepool::storage {

// Number of a kind on disk: its place in JournalRecord.
uint16_t KindOf(const JournalRecord& record);

// Appends the fields (not kind or envelope) of `record` to `out`.
void EncodeFields(const JournalRecord& record, std::string& out);

// kDataLoss if `kind` is unknown, or the bytes do not parse as its fields: too short inside a field,
// longer than the fields, an enum out of range.
StatusOr<JournalRecord> DecodeFields(uint16_t kind, std::string_view bytes, uint32_t schema = kJournalSchema);

nlohmann::ordered_json JournalEntryToJson(const JournalEntry& entry);

}  // namespace tidepool::storage
