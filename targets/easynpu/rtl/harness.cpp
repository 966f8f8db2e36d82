// A core behind C functions: words in and out through its port, clock cycles until it interrupts.
// Compiled with what Verilator makes of an observed core, into a library that simulation.py loads.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <type_traits>
#include <vector>

#include "board.h"
#if VM_TRACE
#include "verilated_vcd_c.h"
#endif

namespace {

constexpr int kLanes = 16;
// A chain's last results leave the PEs some cycles behind its end, the next one's first still later.
constexpr int kBehind = 10;

struct Seen {  // a word's result for one pixel and 16 channels
  uint32_t chain;
  uint16_t stage;
  uint8_t group, row, column, unused[7];
  int8_t lanes[kLanes];
};

#if VM_TRACE
struct Waves {  // a sample of all signals for every cycle of a run
  VerilatedVcdC file;
  uint64_t cycle = 0;
  void open(VerilatedContext& context, Veasynpu& top, const char* path) {
    context.traceEverOn(true);
    file.dumpvars(3, "TOP");  // the core and its parts
    file.dumpvars(9, "TOP.easynpu.array.pe0_0");
    top.trace(&file, 99);
    file.open(path);
  }
  void sample() {
    if (file.isOpen()) file.dump(cycle++);
  }
};
#else
struct Waves {
  void sample() {}
};
#endif

struct Beside {
  uint32_t address, parts[Board::kParts];
};

struct Machine : Board {
  Waves waves;
  std::vector<Seen> seen;
  std::vector<uint32_t> chain_ends;
  uint32_t end = 0;
  int waiting = 0;
  std::deque<Beside> beside;  // words to write while the core runs

  void put_beside() {
    top.write = !beside.empty();
    if (!top.write) return;
    top.address = beside.front().address;
    for (uint32_t part = 0; part < kParts; ++part) top.write_data[part] = beside.front().parts[part];
    beside.pop_front();
  }
};

template <typename T>
uint32_t word(const T& value, int at) {  // 32 bits of a port of any width
  if constexpr (std::is_integral_v<T>) {
    return static_cast<uint32_t>(static_cast<uint64_t>(value) >> (32 * at));
  } else {
    return value[at];
  }
}

template <typename T>
uint8_t byte(const T& value, int at) {
  return static_cast<uint8_t>(word(value, at / 4) >> (8 * (at % 4)));
}

void watch(Machine& machine) {
  const Veasynpu& top = machine.top;
  for (int row = 0; top.seen && row < top.seen_count; ++row) {
    Seen found{};
    found.chain = static_cast<uint32_t>(machine.chain_ends.size());
    found.stage = static_cast<uint16_t>(top.seen_stage);
    found.group = static_cast<uint8_t>(top.seen_group);
    found.row = byte(top.seen_row, row);
    found.column = byte(top.seen_column, row);
    for (int lane = 0; lane < kLanes; ++lane) {
      found.lanes[lane] = static_cast<int8_t>(byte(top.seen_results, kLanes * row + lane));
    }
    machine.seen.push_back(found);
  }
}

void count_chain(Machine& machine) {
  if (machine.waiting && --machine.waiting == 0) machine.chain_ends.push_back(machine.end);
  if (machine.top.chain_ends) {
    machine.end = machine.top.cycles + 1;
    machine.waiting = kBehind;
  }
}

}  // namespace

extern "C" {

void* easynpu_new() {
  return new Machine;
}

void easynpu_delete(void* handle) { delete static_cast<Machine*>(handle); }

void easynpu_write(void* handle, uint32_t address, const uint32_t* words, uint32_t count) {
  static_cast<Machine*>(handle)->write(address, words, count);
}

void easynpu_read(void* handle, uint32_t address, uint32_t* words, uint32_t count) {
  static_cast<Machine*>(handle)->read(address, words, count);
}

// Clock cycles until the core interrupts, at most so many; 1 if it did. watched: results are kept for easynpu_seen.
int easynpu_run(void* handle, uint64_t most, int watched) {
  Machine& machine = *static_cast<Machine*>(handle);
  bool done = false;
  for (uint64_t cycle = 0, last = most; cycle < last; ++cycle) {
    machine.put_beside();
    machine.tick();
    machine.waves.sample();
    if (watched) watch(machine);
    count_chain(machine);
    if (!done && machine.top.interrupt_request) {
      done = true;
      last = cycle + kBehind + 1;
    }
  }
  while (!machine.beside.empty()) {
    machine.put_beside();
    machine.tick();
  }
  machine.top.write = 0;
  return done;
}

// Words to write while the next run is clocked, one in each cycle, and behind its end if it is shorter.
void easynpu_beside(void* handle, uint32_t address, const uint32_t* words, uint32_t count) {
  Machine& machine = *static_cast<Machine*>(handle);
  for (uint32_t at = 0; at < count; ++at) {
    Beside found{address + at, {}};
    std::copy_n(words + Board::kParts * at, Board::kParts, found.parts);
    machine.beside.push_back(found);
  }
}

// Writes the waveforms of all further runs to a file, or completes it with a null pointer.
void easynpu_trace(void* handle, const char* path) {
#if VM_TRACE
  Machine& machine = *static_cast<Machine*>(handle);
  if (path) {
    machine.waves.open(machine.context, machine.top, path);
  } else {
    machine.waves.file.close();
  }
#else
  (void)handle, (void)path;
#endif
}

uint32_t easynpu_seen(void* handle, const void** found) {
  Machine& machine = *static_cast<Machine*>(handle);
  *found = machine.seen.data();
  return static_cast<uint32_t>(machine.seen.size());
}

uint32_t easynpu_chain_ends(void* handle, const uint32_t** found) {
  Machine& machine = *static_cast<Machine*>(handle);
  *found = machine.chain_ends.data();
  return static_cast<uint32_t>(machine.chain_ends.size());
}

void easynpu_forget_seen(void* handle) { static_cast<Machine*>(handle)->seen.clear(); }

void easynpu_forget(void* handle) {
  Machine& machine = *static_cast<Machine*>(handle);
  machine.seen.clear();
  machine.chain_ends.clear();
}
}
