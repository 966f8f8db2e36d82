// A core in Verilator behind its port: a clock, words in and out.
#pragma once

#include <cstdint>

#include "Veasynpu.h"
#include "verilated.h"

struct Board {
  static constexpr uint32_t kParts = 4;  // 32-bit parts of a word

  VerilatedContext context;
  Veasynpu top{&context};

  Board() {
    top.rst = 1;
    tick();
    top.rst = 0;
  }

  bool interrupted() const { return top.interrupt_request; }

  void tick() {
    top.clk = 0;
    top.eval();
    top.clk = 1;
    top.eval();
  }

  void write(uint32_t address, const uint32_t* words, uint32_t count) {
    top.write = 1;
    for (uint32_t at = 0; at < count; ++at) {
      top.address = address + at;
      for (uint32_t part = 0; part < kParts; ++part) top.write_data[part] = words[kParts * at + part];
      tick();
    }
    top.write = 0;
  }

  void read(uint32_t address, uint32_t* words, uint32_t count) {
    top.read = 1;
    for (uint32_t at = 0; at < count; ++at) {
      top.address = address + at;
      tick();
      for (uint32_t part = 0; part < kParts; ++part) words[kParts * at + part] = top.read_data[part];
    }
    top.read = 0;
  }
};
