import assert from "node:assert/strict";
import { statfsSync } from "node:fs";
import { resolve } from "node:path";
import { describe, test } from "node:test";
import { ConfigError, configHelp, loadConfig, unknownSettings } from "./config.ts";

describe("loadConfig", () => {
  test("an empty environment gives the documented defaults", () => {
    const config = loadConfig({});
    assert.equal(config.host, "127.0.0.1");
    assert.equal(config.port, 8080);
    assert.equal(config.dataDir, resolve(import.meta.dirname, "../.capsule"));
    assert.equal(config.accelerator, "auto");
    assert.equal(config.limits.body_max_bytes, 1_048_576);
    assert.equal(config.limits.exec_output_max_bytes, 16_777_216);
    assert.equal(config.limits.file_write_max_bytes, 104_857_600);
    assert.ok(config.limits.vcpus_max >= 8);
    assert.ok(Object.isFrozen(config) && Object.isFrozen(config.limits));
  });

  test("values come from the environment; an empty one counts as unset", () => {
    const config = loadConfig({ CAPSULE_PORT: "0", CAPSULE_HOST: "", CAPSULE_DATA: "here", CAPSULE_VCPUS_MAX: "3" });
    assert.equal(config.port, 0);
    assert.equal(config.host, "127.0.0.1");
    assert.equal(config.dataDir, resolve("here"));
    assert.equal(config.limits.vcpus_max, 3);
  });

  test("the disk's quota, reserve and cache are shares of the data folder's file system, unless they are set", () => {
    const { blocks, bsize } = statfsSync(import.meta.dirname);
    for (const dataDir of [import.meta.dirname, resolve(import.meta.dirname, "not", "made", "yet")]) {
      const { diskReserveMb, cacheMb, limits } = loadConfig({ CAPSULE_DATA: dataDir, CAPSULE_DISK_MAX_BYTES: "" });
      assert.equal(limits.disk_max_bytes, Math.floor((blocks * bsize * 3) / 4));
      assert.equal(cacheMb, Math.floor((blocks * bsize) / 10 / 2 ** 20));
      assert.equal(diskReserveMb, Math.min(8_192, Math.floor((blocks * bsize) / 32 / 2 ** 20)));
    }
    const exact = loadConfig({ CAPSULE_DISK_MAX_BYTES: "123456", CAPSULE_DISK_RESERVE_MB: "0" });
    assert.deepEqual([exact.limits.disk_max_bytes, exact.diskReserveMb], [123_456, 0]);
  });

  test("one error names every bad value", () => {
    const environment = {
      CAPSULE_PORT: "70000",
      CAPSULE_HOST: "two words",
      CAPSULE_ACCELERATOR: "xen",
      CAPSULE_BODY_MAX_BYTES: "1e6",
    };
    assert.throws(
      () => loadConfig(environment),
      (error) => {
        assert.ok(error instanceof ConfigError);
        for (const name of Object.keys(environment)) assert.match(error.message, new RegExp(name));
        assert.match(error.message, /CAPSULE_PORT must be a whole number from 0 to 65535; it is "70000"/);
        return true;
      },
    );
  });

  for (const port of ["-1", "1.5", "0x10", " 80", "NaN", "٣"]) {
    test(`a port of ${JSON.stringify(port)} is refused`, () => {
      assert.throws(() => loadConfig({ CAPSULE_PORT: port }), ConfigError);
    });
  }

  test("bounds that contradict each other are refused", () => {
    const environment = { CAPSULE_MEMORY_MIN_MB: "512", CAPSULE_MEMORY_MAX_MB: "256" };
    assert.throws(() => loadConfig(environment), /CAPSULE_MEMORY_MIN_MB is greater than CAPSULE_MEMORY_MAX_MB/);
    for (const name of ["TIMEOUT", "LIFETIME", "RETENTION", "EXEC_TIMEOUT"]) {
      const [least, most] = [`CAPSULE_${name}_DEFAULT_SEC`, `CAPSULE_${name}_MAX_SEC`];
      assert.throws(() => loadConfig({ [least]: "60", [most]: "59" }), new RegExp(`${least} is greater than ${most}`));
      loadConfig({ [least]: "60", [most]: "60" });
    }
  });
});

test("a name of an earlier release is not read", () => {
  const config = loadConfig({ CAPSULE_POOL_LEAST: "3", CAPSULE_POOL_MIN: "5" });
  assert.equal(config.poolMin, 5);
  assert.notEqual(loadConfig({ CAPSULE_POOL_LEAST: "999" }).poolMin, 999);
});

test("a variable that begins like a setting and is none is told, with the setting that is meant", () => {
  assert.deepEqual(
    unknownSettings({ CAPSULE_PROT: "9", CAPSULE_X_Y_Z_W: "1", CAPSULE_URL: "u", CAPSULE_PORT: "1", PATH: "" }),
    ["CAPSULE_PROT is no setting; CAPSULE_PORT is", "CAPSULE_X_Y_Z_W is no setting"],
  );
});

/** Without heads and empty lines. */
function rowsOf(help: string): string[] {
  return help.split("\n").filter((line) => line !== "" && !line.endsWith(":"));
}

describe("configHelp", () => {
  test("each meaning fits into 90 characters and is no sentence", () => {
    for (const line of rowsOf(configHelp())) {
      const meaning = line.split(/ {2,}/).at(-1)!;
      assert.ok(meaning.length <= 90, `${meaning.length}: ${line}`);
      assert.doesNotMatch(meaning, /\.$/, line);
    }
  });

  test("has one line per row, and is the same on every machine", () => {
    const lines = rowsOf(configHelp());
    const { limits, crashAt: _, ...settings } = loadConfig({});
    assert.equal(lines.length, Object.keys(settings).length + Object.keys(limits).length);
    assert.ok(lines.every((line) => /^(CAPSULE|OTEL)_[A-Z_]+ {2,}\S/.test(line)));
    assert.match(configHelp(), /CAPSULE_DATA +\.\/\.capsule /);
    assert.match(configHelp(), /CAPSULE_MEMORY_MAX_MB +the host's memory /);
  });
});
