// Prints the digest of a box, whose dense bytes are in the standard input, for tests/python/test_digest.py:
//
//   digest_boxes NAME DTYPE SHAPE OFFSET SIZE
//
// SHAPE, OFFSET and SIZE are numbers with commas, or "" for a scalar.

#include <cstdio>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>

#include "digest/digest.h"

namespace weightcast::digest {
namespace {

Shape ParseShape(const std::string& text) {
  Shape shape;
  std::istringstream numbers(text);
  for (std::string number; std::getline(numbers, number, ',');) shape.push_back(std::stoll(number));
  return shape;
}

int Main(char** argv) {
  const std::string bytes{std::istreambuf_iterator<char>(std::cin), {}};
  const auto key =
      TensorKey::Of({.name = argv[1], .dtype = DTypeFromName(argv[2]).value(), .shape = ParseShape(argv[3])});
  if (!key.ok()) return std::fprintf(stderr, "%s\n", key.status().ToString().c_str()), 1;
  const auto digest = key->DigestOf({.offset = ParseShape(argv[4]), .size = ParseShape(argv[5])},
                                    reinterpret_cast<const std::byte*>(bytes.data()));
  if (!digest.ok()) return std::fprintf(stderr, "%s\n", digest.status().ToString().c_str()), 1;
  return std::puts(digest->ToString().c_str()) < 0 ? 1 : 0;
}

}  // namespace
}  // namespace weightcast::digest

int main(int argc, char** argv) { return argc == 6 ? weightcast::digest::Main(argv) : 2; }
