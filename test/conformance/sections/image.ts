/** Section "Image" of the extensions: programs of `minimal`, and its user `user`. A capsule has no network. */
import assert from "node:assert/strict";
import { after, before } from "node:test";
import type { ExecResult, TestCapsule } from "../../client.ts";
import { section, test } from "../conforms.ts";
import { client } from "../service.ts";

const users = ["user", "root"] as const;
type User = (typeof users)[number];

/** pip is a large program: under emulation one call takes 2 s, on a busy machine 30 s. */
const timeoutSec = 300;
const longMs = 900_000;

const path = "/tmp/answer-1.0-py3-none-any.whl";
/** A Python program that writes the wheel of a module with a command, `answer`. */
const wheel = `
import zipfile
files = {
    "answer.py": "answer = 42\\ndef main(): print(answer)\\n",
    "answer-1.0.dist-info/METADATA": "Metadata-Version: 2.1\\nName: answer\\nVersion: 1.0\\n",
    "answer-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    "answer-1.0.dist-info/entry_points.txt": "[console_scripts]\\nanswer = answer:main\\n",
}
record = "answer-1.0.dist-info/RECORD"
files[record] = "".join(name + ",,\\n" for name in [*files, record])
with zipfile.ZipFile("${path}", "w") as archive:
    for name, text in files.items():
        archive.writestr(name, text)
`;

export const image = section(import.meta, "image", () => {
  let capsule: TestCapsule;
  before(async () => {
    capsule = await client.capsule();
    await output("root", `python3 -c '${wheel}'`);
  });
  after(() => capsule?.[Symbol.asyncDispose]());

  /** Runs a bash script as this user. */
  function run(user: User, script: string): Promise<ExecResult> {
    return capsule.run("bash", ["-c", script], { user, timeout_sec: timeoutSec });
  }

  /** As `run`; throws unless the script exits with 0. Resolves with its standard output. */
  async function output(user: User, script: string): Promise<string> {
    const result = await run(user, script);
    assert.equal(result.exit_code, 0, `${script} as ${user}: ${JSON.stringify(result)}`);
    return result.stdout.trimEnd();
  }

  test("the programs of the image run, as root and as user", async () => {
    const shown: [command: string, pattern: RegExp][] = [
      ["python3 --version", /^Python 3\./],
      ["python --version", /^Python 3\./],
      ["git --version", /^git version 2\./],
      ["curl --version", /^curl \d/],
      [`echo '{"a": [1, 42]}' | jq .a[1]`, /^42$/],
      ["sudo --version", /^Sudo version 1\./],
      ["ssh -V 2>&1", /^OpenSSH_/],
      ["getent protocols tcp", /^tcp +6 TCP$/],
      ["getent services https", /^https +443\/tcp$/],
    ];
    for (const user of users) {
      for (const [command, pattern] of shown)
        assert.match(await output(user, command), pattern, `${command} as ${user}`);
    }
  });

  test("beside root there is a user `user`, uid and gid 1000, with a home of its own", async () => {
    assert.equal(await output("user", "id"), "uid=1000(user) gid=1000(user) groups=1000(user)");
    assert.equal(await output("root", "getent passwd user"), "user:x:1000:1000::/home/user:/bin/bash");
    assert.equal(await output("user", "cd && pwd && touch file && stat -c '%U:%G %s' file"), "/home/user\nuser:user 0");
    assert.equal(await output("root", "getent shadow root user | cut -d: -f2 | grep -cv '^[*!]'; true"), "0");
  });

  test("a terminal's first bash tells what is here, and its programs find their shell", async () => {
    for (const user of users) {
      const interactive = (script: string) => capsule.run("bash", ["-ic", script], { user, timeout_sec: timeoutSec });
      const { stdout } = await interactive("printenv SHELL; bash -ic true; touch ~/.hushlogin");
      assert.match(stdout, /^This is a capsule: .*\n[\s\S]*capsule snapshot[\s\S]*\n\/bin\/bash\n$/, user);
      assert.equal(stdout.split("This is a capsule").length, 2, "a bash within it says nothing");
      assert.equal((await interactive("printenv SHELL; rm ~/.hushlogin")).stdout, "/bin/bash\n", user);
    }
  });

  test("process 1 is /init, without options of the kernel's", async () => {
    assert.equal(await output("root", "tr '\\0' ' ' </proc/1/cmdline"), "/init");
  });

  test("sudo asks `user` for no password, and root neither", async () => {
    for (const user of users) {
      assert.equal(await output(user, "sudo -n id -u"), "0");
      assert.equal(await output(user, "sudo -n -u user id -un"), "user");
    }
    assert.equal((await run("user", "cat /etc/shadow")).exit_code, 1, "without sudo the user is no root");
  });

  test("sudo and git do without an address of the host's name, whatever that is", async () => {
    const name = await output("root", "hostname");
    assert.equal(name, capsule.id, "the name of a new capsule");
    await output("root", "hostname nowhere");
    try {
      for (const user of users) {
        const { stdout, stderr } = await run(user, "sudo -n hostname");
        assert.deepEqual({ stdout, stderr }, { stdout: "nowhere\n", stderr: "" });
      }
    } finally {
      await output("root", `hostname ${name}`);
    }
    assert.equal((await run("user", "getent hosts example.com")).exit_code, 2, "no name server: not found, at once");
  });

  const places = { user: "/home/user/.local/lib/", root: "/usr/local/lib/" };

  test(
    "pip installs a wheel outside a virtual environment, without a network",
    async () => {
      for (const user of users) {
        const { exit_code, stderr } = await run(user, `cd && pip install --no-index ${path}`);
        assert.equal(exit_code, 0, stderr);
        assert.doesNotMatch(stderr, /externally-managed|running pip as the 'root' user/i);
        const [answer, file = ""] = (
          await output(user, "cd && python3 -c 'import answer; print(answer.answer, answer.__file__)'")
        ).split(" ");
        assert.equal(answer, "42");
        assert.ok(file.startsWith(places[user]), `${user}: ${file}`);
      }
    },
    { timeoutMs: longMs },
  );

  test(
    "a virtual environment is made, with pip's wheel at hand, and installed into",
    async () => {
      // Without --without-pip it takes 20 s under emulation, on a busy machine minutes.
      const script = `set -e; cd; python -m ensurepip --version; python -m venv --without-pip environment
        pip --python environment/bin/python install --no-index ${path} >&2
        environment/bin/answer; environment/bin/python -c 'import answer; print(answer.__file__)'`;
      assert.match(await output("user", script), /^pip \d.*\n42\n\/home\/user\/environment\/lib\//);
    },
    { timeoutMs: longMs },
  );

  test("git makes a repository and commits", async () => {
    for (const user of users) {
      const script = `set -e; cd; git init --quiet repository; cd repository; echo text > file; git add file
        git -c user.name=Name -c user.email=name@example.com commit --quiet --message 'first'; git log --format='%an %s'`;
      assert.equal(await output(user, script), "Name first", user);
    }
  });
});
