#include <zstd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/strings.h"
#include "plan/table_format.h"

namespace weightcast::plan {
namespace {

constexpr std::string_view kPieceMagic = "WCPIECE\n";
constexpr int kCompressionLevel = 1;  // Tables are made in bulk and read once: speed before size.

/// What every piece begins with, after its magic and its checksum.
struct PieceHead {
  uint32_t index = 0;
  uint32_t count = 0;
  uint64_t raw_bytes = 0;
  uint64_t raw_hash = 0;  ///< Of the bytes before compression: tells the pieces of different tables apart.
};

constexpr size_t kPieceHeaderBytes = 8 + 8 + 4 + 4 + 8 + 8;
constexpr size_t kPayloadBytes = kMaxPieceBytes - kPieceHeaderBytes;

struct MessagePiece {
  PieceHead head;
  std::string_view payload;
};

std::string WriteMessagePiece(const PieceHead& head, std::string_view payload) {
  ByteWriter body;
  body.Put(head.index);
  body.Put(head.count);
  body.Put(head.raw_bytes);
  body.Put(head.raw_hash);
  body.PutRaw(payload);
  ByteWriter out;
  out.PutRaw(kPieceMagic);
  out.Put(Hash64(body.bytes()));
  out.PutRaw(body.bytes());
  return out.Take();
}

Status CorruptPieces(std::string_view reason) {
  return Error(Code::kCorrupt, "a message came in pieces that do not fit together: ", reason,
               "; use the same weightcast on all hosts");
}

Result<MessagePiece> ReadMessagePiece(std::string_view bytes) {
  if (bytes.size() < kPieceHeaderBytes || bytes.size() > kMaxPieceBytes ||
      bytes.substr(0, kPieceMagic.size()) != kPieceMagic)
    return CorruptPieces("one is not a piece of a message");
  ByteReader in(bytes.substr(kPieceMagic.size()));
  if (in.Get<uint64_t>() != Hash64(in.rest())) return CorruptPieces("one has a wrong checksum");
  MessagePiece piece;
  piece.head.index = in.Get<uint32_t>();
  piece.head.count = in.Get<uint32_t>();
  piece.head.raw_bytes = in.Get<uint64_t>();
  piece.head.raw_hash = in.Get<uint64_t>();
  piece.payload = in.rest();
  return piece;
}

/// The payloads in order, if the pieces are all there and of one table.
Result<std::string> Concatenate(std::span<const MessagePiece> pieces) {
  const PieceHead& first = pieces[0].head;
  if (first.count != pieces.size())
    return CorruptPieces(StrCat("there are ", pieces.size(), " of ", first.count));
  std::vector<const MessagePiece*> ordered(pieces.size(), nullptr);
  for (const MessagePiece& piece : pieces) {
    const PieceHead& head = piece.head;
    if (head.count != first.count || head.raw_bytes != first.raw_bytes || head.raw_hash != first.raw_hash)
      return CorruptPieces("they are of different messages");
    if (head.index >= head.count || ordered[head.index] != nullptr)
      return CorruptPieces(StrCat("piece ", head.index, " of ", head.count, " is there twice"));
    ordered[head.index] = &piece;
  }
  std::string out;
  for (const MessagePiece* piece : ordered) out += piece->payload;
  return out;
}

}  // namespace

Result<std::vector<std::string>> SplitPieces(std::string_view bytes) {
  std::string compressed(ZSTD_compressBound(bytes.size()), '\0');
  const size_t size =
      ZSTD_compress(compressed.data(), compressed.size(), bytes.data(), bytes.size(), kCompressionLevel);
  if (ZSTD_isError(size) != 0)
    return Error(Code::kExhausted, "a large message cannot be compressed: ", ZSTD_getErrorName(size),
                 "; give its sender more memory (of a plan the controller, else the worker)");
  const std::string_view rest(compressed.data(), size);
  PieceHead head{.count = static_cast<uint32_t>((size + kPayloadBytes - 1) / kPayloadBytes),
                 .raw_bytes = bytes.size(),
                 .raw_hash = Hash64(bytes)};
  std::vector<std::string> pieces;
  for (; head.index < head.count; ++head.index)
    pieces.push_back(WriteMessagePiece(head, rest.substr(head.index * kPayloadBytes, kPayloadBytes)));
  return pieces;
}

Result<std::string> JoinPieces(std::span<const std::string> pieces, size_t max_bytes) {
  if (pieces.empty()) return CorruptPieces("there are none");
  std::vector<MessagePiece> read;
  for (const std::string& piece : pieces) {
    WC_ASSIGN_OR_RETURN(MessagePiece one, ReadMessagePiece(piece));
    read.push_back(one);
  }
  const PieceHead& head = read[0].head;
  if (head.raw_bytes > max_bytes)
    return Error(Code::kExhausted, "a message between worker and controller has ", head.raw_bytes,
                 " bytes; at most ", max_bytes, " are accepted: register fewer and larger shards per rank");
  WC_ASSIGN_OR_RETURN(const std::string compressed, Concatenate(read));
  if (ZSTD_getFrameContentSize(compressed.data(), compressed.size()) != head.raw_bytes)
    return CorruptPieces("their compressed size is not what they say");
  std::string out(head.raw_bytes, '\0');
  const size_t size = ZSTD_decompress(out.data(), out.size(), compressed.data(), compressed.size());
  if (ZSTD_isError(size) != 0 || size != out.size()) return CorruptPieces("they cannot be decompressed");
  if (Hash64(out) != head.raw_hash) return CorruptPieces("the message they make has a wrong checksum");
  return out;
}

}  // namespace weightcast::plan
