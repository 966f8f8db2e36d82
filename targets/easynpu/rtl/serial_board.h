// A core in Verilator behind its serial line (serial.py): a clock and two wires.
#pragma once

#include <cstdint>

#include "Veasynpu_serial.h"
#include "verilated.h"

struct Board {
  static constexpr uint32_t kParts = 4;       // 32-bit parts of a word
  static constexpr int kBits = 8, kBytes = 16;

  VerilatedContext context;
  Veasynpu_serial top{&context};

  Board() {
    top.receive = 1;
    top.rst = 1;
    tick();
    top.rst = 0;
    wait();
  }

  bool interrupted() const { return top.interrupt_request; }

  void tick() {
    top.clk = 0;
    top.eval();
    top.clk = 1;
    top.eval();
  }

  void write(uint32_t address, const uint32_t* words, uint32_t count) {
    request('w', address, count);
    for (uint32_t at = 0; at < kBytes * count; ++at) put(static_cast<uint8_t>(words[at / 4] >> (8 * (at % 4))));
    wait();
  }

  void read(uint32_t address, uint32_t* words, uint32_t count) {
    request('r', address, count);
    for (uint32_t at = 0; at < kParts * count; ++at) words[at] = 0;
    for (uint32_t at = 0; at < kBytes * count; ++at) words[at / 4] |= static_cast<uint32_t>(get()) << (8 * (at % 4));
  }

 private:
  void wait() {
    for (int clock = 0; clock < CLOCKS; ++clock) tick();
  }

  void bit(bool value) {
    top.receive = value;
    wait();
  }

  void put(uint8_t byte) {
    bit(false);
    for (int at = 0; at < kBits; ++at) bit((byte >> at) & 1);
    bit(true);
  }

  uint8_t get() {
    while (top.send) tick();
    for (int clock = 0; clock < CLOCKS / 2; ++clock) tick();  // the middle of the start bit
    uint8_t byte = 0;
    for (int at = 0; at < kBits; ++at) {
      wait();
      byte |= static_cast<uint8_t>(top.send << at);
    }
    wait();
    return byte;
  }

  void request(char command, uint32_t address, uint32_t count) {
    put(static_cast<uint8_t>(command));
    for (int at = 0; at < 3; ++at) put(static_cast<uint8_t>(address >> (8 * at)));
    for (int at = 0; at < 2; ++at) put(static_cast<uint8_t>(count >> (8 * at)));
  }
};
