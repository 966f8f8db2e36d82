// Runs steps on the core and compares what they expect: testbench STEPS.txt
//
// A step is a line; addresses (in words, region above) and words are hexadecimal, lane 15 first.
//   write ADDRESS WORD     a word, or a register
//   run CYCLES             clock until the interrupt, at most this many cycles (decimal)
//   expect ADDRESS WORD    the word must be there
// Neighbouring words are transferred together. With AXI defined the core is behind its AXI wrapper, with CLOCKS
// behind its serial line, with so many cycles a bit.
// Exit code 0: everything was as expected; 1: a difference; 2: the file cannot be used.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#if defined AXI
#include "axi_board.h"
#elif defined CLOCKS
#include "serial_board.h"
#else
#include "board.h"
#endif

namespace {

struct Word {
  uint32_t parts[Board::kParts] = {};
};

struct Step {
  std::string kind;
  uint64_t value = 0;  // address, or cycles
  Word word;
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

bool parse(const std::string& line, Step& step) {
  std::istringstream words(line);
  std::string text;
  words >> step.kind;
  if (step.kind == "run") return static_cast<bool>(words >> step.value);
  const bool known = step.kind == "write" || step.kind == "expect";
  return known && words >> std::hex >> step.value >> text && parse(text, step.word);
}

bool run(Board& board, uint64_t most, uint64_t& cycles) {
  for (uint64_t cycle = 0; cycle < most; ++cycle) {
    board.tick();
    ++cycles;
    if (board.interrupted()) return true;
  }
  return false;
}

struct Result {
  uint64_t cycles = 0;
  long compared = 0, differing = 0;
};

// Executes the steps of one kind at neighbouring addresses, from `at` on; returns the first step after them.
size_t take(Board& board, const std::vector<Step>& steps, size_t at, Result& result) {
  const Step& first = steps[at];
  std::vector<Word> words;
  size_t end = at;
  for (; end < steps.size() && steps[end].kind == first.kind && steps[end].value == first.value + (end - at); ++end) {
    words.push_back(steps[end].word);
  }
  const auto address = static_cast<uint32_t>(first.value), count = static_cast<uint32_t>(words.size());
  if (first.kind == "write") {
    board.write(address, words[0].parts, count);
    return end;
  }
  std::vector<Word> found(count);
  board.read(address, found[0].parts, count);
  result.compared += count;
  for (uint32_t word = 0; word < count; ++word) {
    if (std::memcmp(found[word].parts, words[word].parts, sizeof words[word].parts) == 0) continue;
    if (++result.differing <= 10) std::printf("line %zu: address %x differs\n", at + word + 1, address + word);
  }
  return end;
}

}  // namespace

int main(int count, char** arguments) {
  std::ifstream file(count == 2 ? arguments[1] : "");
  if (!file) {
    std::fprintf(stderr, "usage: testbench STEPS.txt\n");
    return 2;
  }
  std::vector<Step> steps;
  for (std::string line; std::getline(file, line);) {
    Step step;
    if (!parse(line, step)) {
      std::fprintf(stderr, "line %zu is no step\n", steps.size() + 1);
      return 2;
    }
    steps.push_back(step);
  }
  Board board;
  Result result;
  for (size_t at = 0; at < steps.size();) {
    if (steps[at].kind != "run") {
      at = take(board, steps, at, result);
    } else if (!run(board, steps[at++].value, result.cycles)) {
      std::printf("line %zu: the core does not interrupt\n", at);
      return 1;
    }
  }
  std::printf("%ld words compared, %ld differ; %llu clock cycles of runs\n", result.compared, result.differing,
              static_cast<unsigned long long>(result.cycles));
  return result.differing != 0;
}
