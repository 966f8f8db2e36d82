// Runs steps on the core and compares what they expect: testbench STEPS.txt
//
// A step is a line; addresses (in words, region above) and words are hexadecimal, lane 15 first.
//   write ADDRESS WORD     a word, or a register
//   run CYCLES             clock cycles until the interrupt, at most so many (decimal)
//   expect ADDRESS WORD    what must stand there
// Exit code 0: everything was as expected; 1: not; 2: the file cannot be used.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "board.h"

namespace {

struct Word {
  uint32_t parts[Board::kParts] = {};
};

bool parse(const std::string& text, Word& word) {
  constexpr size_t kDigits = 8;
  if (text.size() != kDigits * Board::kParts) return false;
  for (size_t part = 0; part < Board::kParts; ++part) {
    const size_t at = kDigits * (Board::kParts - 1 - part);
    word.parts[part] = static_cast<uint32_t>(std::stoul(text.substr(at, kDigits), nullptr, 16));
  }
  return true;
}

bool run(Board& board, uint64_t most, uint64_t& cycles) {
  for (uint64_t cycle = 0; cycle < most; ++cycle) {
    board.tick();
    ++cycles;
    if (board.top.interrupt_request) return true;
  }
  return false;
}

}  // namespace

int main(int count, char** arguments) {
  std::ifstream file(count == 2 ? arguments[1] : "");
  if (!file) {
    std::fprintf(stderr, "usage: testbench STEPS.txt\n");
    return 2;
  }
  Board board;
  uint64_t cycles = 0;
  long compared = 0, differing = 0, number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    std::istringstream words(line);
    std::string step, text;
    uint64_t value = 0;
    Word word;
    words >> step;
    if (step == "run" && words >> value) {
      if (run(board, value, cycles)) continue;
      std::printf("line %ld: the core does not interrupt\n", number);
      return 1;
    }
    const bool known = step == "write" || step == "expect";
    if (!known || !(words >> std::hex >> value >> text) || !parse(text, word)) {
      std::fprintf(stderr, "line %ld is no step\n", number);
      return 2;
    }
    const auto address = static_cast<uint32_t>(value);
    if (step == "write") {
      board.write(address, word.parts, 1);
      continue;
    }
    Word found;
    board.read(address, found.parts, 1);
    ++compared;
    if (std::memcmp(found.parts, word.parts, sizeof word.parts) != 0 && ++differing <= 10) {
      std::printf("line %ld: address %x differs\n", number, address);
    }
  }
  std::printf("%ld words compared, %ld differ; %llu clock cycles of runs\n", compared, differing,
              static_cast<unsigned long long>(cycles));
  return differing != 0;
}
