import assert from "node:assert/strict";
import { test } from "node:test";
import { findProgram, linkedFilesIn, programFilesOf } from "./program-files.ts";

test("the loader and libraries are read from ldd's output", () => {
  const output = `	linux-vdso.so.1 (0x00007ffd)
	/opt/preloaded.so (0x00007f00)
	libz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f01)
	libgone.so => not found
	/lib64/ld-linux-x86-64.so.2 (0x00007f02)
`;
  const [loader, libraries] = ["/lib64/ld-linux-x86-64.so.2", ["/lib/x86_64-linux-gnu/libz.so.1"]];
  assert.deepEqual(linkedFilesIn(output), { loader, libraries });
  assert.deepEqual(linkedFilesIn("	statically linked\n"), { libraries: [] });
});

test("a program's files are itself and its libraries' folders, but neither /etc nor other programs", async () => {
  const { program, readOnly } = await programFilesOf("qemu-img");
  assert.equal(program, findProgram("qemu-img"));
  assert.ok(readOnly.includes(program));
  assert.ok(readOnly.some((path) => path.includes("/lib")));
  for (const path of ["/", "/usr", "/usr/bin", "/bin", "/etc"]) assert.ok(!readOnly.includes(path), path);
});

test("a missing program is an error that names it", async () => {
  assert.equal(findProgram("no-such-program"), undefined);
  await assert.rejects(programFilesOf("no-such-program"), /no-such-program is not installed/);
});
