// A core in Verilator behind AXI: words in and out as bursts of random length, with random waits.
// A violation of an AXI rule, or a response other than OKAY, ends the program with a message. The environment's SEED
// chooses the waits.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "Veasynpu_axi.h"
#include "verilated.h"

struct Board {
  static constexpr uint32_t kParts = 4;  // 32-bit parts of a word
  static constexpr uint32_t kRegisters = 4u << ADDRESS_BITS;
  static constexpr uint32_t kPage = 256;  // words of 4 KB, which no burst crosses
  static constexpr int kPatience = 10000;

  VerilatedContext context;
  Veasynpu_axi top{&context};
  std::mt19937 random{std::getenv("SEED") ? static_cast<uint32_t>(std::atoi(std::getenv("SEED"))) : 1u};

  Board() {
    top.aresetn = 0;
    tick();
    tick();
    top.aresetn = 1;
  }

  bool interrupted() const { return top.interrupt_request; }

  void tick() { cycle(); }

  void write(uint32_t address, const uint32_t* words, uint32_t count) {
    for (uint32_t done = 0; done < count;) {
      const uint32_t at = address + done;
      if (at >= kRegisters) {
        write_register(at - kRegisters, words[kParts * done++]);
      } else {
        const uint32_t beats = length(at, count - done);
        write_burst(at, words + kParts * done, beats);
        done += beats;
      }
    }
  }

  void read(uint32_t address, uint32_t* words, uint32_t count) {
    std::fill(words, words + kParts * count, 0);
    for (uint32_t done = 0; done < count;) {
      const uint32_t at = address + done;
      if (at >= kRegisters) {
        words[kParts * done++] = read_register(at - kRegisters);
      } else {
        const uint32_t beats = length(at, count - done);
        read_burst(at, words + kParts * done, beats);
        done += beats;
      }
    }
  }

 private:
  struct Handed {  // the handshakes of a cycle, by channel
    bool aw, w, b, ar, r, lite_aw, lite_w, lite_b, lite_ar, lite_r;
  };
  struct Held {  // a response that was not accepted yet
    bool waits = false;
    std::array<uint32_t, 7> payload{};
  };
  Held b_, r_, lite_b_, lite_r_;

  bool luck() { return random() % 3 != 0; }

  uint32_t length(uint32_t at, uint32_t most) {
    const uint32_t room = std::min(kPage - at % kPage, kRegisters - at);
    return std::min({most, room, static_cast<uint32_t>(random() % kPage + 1)});
  }

  [[noreturn]] static void fail(const char* what) {
    std::printf("AXI: %s\n", what);
    std::exit(1);
  }

  static void expect(bool holds, const char* otherwise) {
    if (!holds) fail(otherwise);
  }

  static void steady(Held& held, bool valid, bool ready, const std::array<uint32_t, 7>& payload) {
    expect(!held.waits || valid, "valid falls before ready");
    expect(!held.waits || held.payload == payload, "a payload changes before ready");
    held = {valid && !ready, payload};
  }

  Handed cycle() {
    top.aclk = 0;
    top.eval();
    const auto& data = top.s_axi_rdata;
    steady(b_, top.s_axi_bvalid, top.s_axi_bready, {top.s_axi_bid, top.s_axi_bresp});
    steady(r_, top.s_axi_rvalid, top.s_axi_rready,
           {data[0], data[1], data[2], data[3], top.s_axi_rid, top.s_axi_rresp, top.s_axi_rlast});
    steady(lite_b_, top.s_axi_lite_bvalid, top.s_axi_lite_bready, {top.s_axi_lite_bresp});
    steady(lite_r_, top.s_axi_lite_rvalid, top.s_axi_lite_rready, {top.s_axi_lite_rdata, top.s_axi_lite_rresp});
    const Handed handed{top.s_axi_awvalid && top.s_axi_awready,           top.s_axi_wvalid && top.s_axi_wready,
                        top.s_axi_bvalid && top.s_axi_bready,             top.s_axi_arvalid && top.s_axi_arready,
                        top.s_axi_rvalid && top.s_axi_rready,             top.s_axi_lite_awvalid && top.s_axi_lite_awready,
                        top.s_axi_lite_wvalid && top.s_axi_lite_wready,   top.s_axi_lite_bvalid && top.s_axi_lite_bready,
                        top.s_axi_lite_arvalid && top.s_axi_lite_arready, top.s_axi_lite_rvalid && top.s_axi_lite_rready};
    expect(!handed.b || top.s_axi_bresp == 0, "a write is not answered with OKAY");
    expect(!handed.r || top.s_axi_rresp == 0, "a read is not answered with OKAY");
    expect(!handed.lite_b || top.s_axi_lite_bresp == 0, "a register's write is not answered with OKAY");
    expect(!handed.lite_r || top.s_axi_lite_rresp == 0, "a register's read is not answered with OKAY");
    if (handed.r) {
      for (uint32_t part = 0; part < kParts; ++part) read_[part] = data[part];
      last_ = top.s_axi_rlast;
      id_ = top.s_axi_rid;
    }
    if (handed.b) id_ = top.s_axi_bid;
    if (handed.lite_r) read_[0] = top.s_axi_lite_rdata;
    top.aclk = 1;
    top.eval();
    return handed;
  }
  uint32_t read_[kParts] = {};
  uint32_t last_ = 0, id_ = 0;

  void write_burst(uint32_t at, const uint32_t* words, uint32_t beats) {
    bool asked = false;
    uint32_t sent = 0;
    const uint32_t id = random() % 256;
    top.s_axi_awid = id, top.s_axi_awaddr = 16 * at, top.s_axi_awlen = beats - 1;
    top.s_axi_awsize = 4, top.s_axi_awburst = 1, top.s_axi_wstrb = 0xFFFF;
    for (int patience = kPatience; patience; --patience) {
      if (!asked && luck()) top.s_axi_awvalid = 1;
      if (sent < beats && !top.s_axi_wvalid && luck()) {
        for (uint32_t part = 0; part < kParts; ++part) top.s_axi_wdata[part] = words[kParts * sent + part];
        top.s_axi_wvalid = 1, top.s_axi_wlast = sent + 1 == beats;
      }
      top.s_axi_bready = luck();
      const Handed now = cycle();
      if (now.aw) asked = true, top.s_axi_awvalid = 0;
      if (now.w) ++sent, top.s_axi_wvalid = 0;
      if (now.b) {
        top.s_axi_bready = 0;
        return expect(asked && sent == beats && id_ == id, "a write is answered early, or for another");
      }
    }
    fail("a write is never answered");
  }

  void read_burst(uint32_t at, uint32_t* words, uint32_t beats) {
    bool asked = false;
    uint32_t found = 0;
    const uint32_t id = random() % 256;
    top.s_axi_arid = id, top.s_axi_araddr = 16 * at, top.s_axi_arlen = beats - 1;
    top.s_axi_arsize = 4, top.s_axi_arburst = 1;
    for (int patience = kPatience; patience; --patience) {
      if (!asked && luck()) top.s_axi_arvalid = 1;
      top.s_axi_rready = luck();
      const Handed now = cycle();
      if (now.ar) asked = true, top.s_axi_arvalid = 0;
      if (!now.r) continue;
      std::copy(read_, read_ + kParts, words + kParts * found++);
      expect(asked && id_ == id && last_ == (found == beats), "a read is answered early, for another, or in part");
      if (found == beats) {
        top.s_axi_rready = 0;
        return;
      }
    }
    fail("a read is never answered");
  }

  void write_register(uint32_t number, uint32_t value) {
    bool asked = false, sent = false;
    top.s_axi_lite_awaddr = 4 * number, top.s_axi_lite_wdata = value, top.s_axi_lite_wstrb = 15;
    for (int patience = kPatience; patience; --patience) {
      if (!asked && luck()) top.s_axi_lite_awvalid = 1;
      if (!sent && luck()) top.s_axi_lite_wvalid = 1;
      top.s_axi_lite_bready = luck();
      const Handed now = cycle();
      if (now.lite_aw) asked = true, top.s_axi_lite_awvalid = 0;
      if (now.lite_w) sent = true, top.s_axi_lite_wvalid = 0;
      if (now.lite_b) {
        top.s_axi_lite_bready = 0;
        return;
      }
    }
    fail("a register's write is never answered");
  }

  uint32_t read_register(uint32_t number) {
    bool asked = false;
    top.s_axi_lite_araddr = 4 * number;
    for (int patience = kPatience; patience; --patience) {
      if (!asked && luck()) top.s_axi_lite_arvalid = 1;
      top.s_axi_lite_rready = luck();
      const Handed now = cycle();
      if (now.lite_ar) asked = true, top.s_axi_lite_arvalid = 0;
      if (now.lite_r) {
        top.s_axi_lite_rready = 0;
        return read_[0];
      }
    }
    fail("a register's read is never answered");
  }
};
