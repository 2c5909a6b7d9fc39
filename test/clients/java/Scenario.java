// What Java's HttpClient and its WebSocket do with the service, one JSON line a step; suite.test.ts starts it and judges.
// The JDK has no JSON, so the few fields that are wanted are found by their names.

import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.net.http.HttpTimeoutException;
import java.net.http.WebSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.Base64;
import java.util.HexFormat;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.function.Predicate;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

public class Scenario {
  static final String BASE = System.getenv("CAPSULE_URL");
  static final String KEY = System.getenv("CAPSULE_API_KEY");
  static final Path FOLDER = Path.of(System.getenv("CLIENT_FOLDER"));
  static final Path BIG = Path.of(System.getenv("CLIENT_FILE"));
  static final Path REFUSED = Path.of(System.getenv("CLIENT_REFUSED"));
  static final HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();

  record Answer(int status, String body) {
    String field(String name) {
      Matcher found = Pattern.compile("\"" + name + "\":(\"(?:\\\\.|[^\"\\\\])*\"|-?\\d+)").matcher(body);
      return found.find() ? found.group(1) : "null";
    }

    String text(String name) {
      return field(name).replaceAll("^\"|\"$", "");
    }

    String error() {
      return "\"answer\":[" + status + "," + field("code") + "]";
    }
  }

  static void say(String step, String fields) {
    System.out.println("{\"step\":\"" + step + "\"," + fields + "}");
  }

  static HttpRequest.Builder request(String path) {
    return HttpRequest.newBuilder(URI.create(BASE + path)).header("X-API-Key", KEY);
  }

  static Answer send(HttpRequest request) throws InterruptedException {
    try {
      var answer = client.send(request, BodyHandlers.ofString());
      return new Answer(answer.statusCode(), answer.body());
    } catch (IOException error) {
      return new Answer(0, error.toString());
    }
  }

  static Answer call(String method, String path) throws InterruptedException {
    return send(request(path).method(method, BodyPublishers.noBody()).build());
  }

  static Answer post(String path, String json) throws InterruptedException {
    return send(request(path).header("Content-Type", "application/json").POST(BodyPublishers.ofString(json)).build());
  }

  static Answer upload(String path, String target, BodyPublisher content) throws InterruptedException {
    return upload(path, target, content, false);
  }

  static Answer upload(String path, String target, BodyPublisher content, boolean isFileFirst)
      throws InterruptedException {
    String pathPart = "--form\r\nContent-Disposition: form-data; name=\"path\"\r\n\r\n" + target + "\r\n";
    String filePart = "--form\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n";
    String begin = isFileFirst ? filePart : pathPart + filePart;
    String end = "\r\n" + (isFileFirst ? pathPart : "") + "--form--\r\n";
    var body = BodyPublishers.concat(BodyPublishers.ofString(begin), content, BodyPublishers.ofString(end));
    return send(request(path).header("Content-Type", "multipart/form-data; boundary=form").POST(body).build());
  }

  static int download(String path, String target, Path file) throws Exception {
    var body = BodyPublishers.ofString("{\"path\":\"" + target + "\"}");
    var request = request(path).header("Content-Type", "application/json").POST(body).build();
    return client.send(request, BodyHandlers.ofFile(file)).statusCode();
  }

  static String sum(Path file) throws Exception {
    MessageDigest hash = MessageDigest.getInstance("SHA-256");
    try (InputStream content = Files.newInputStream(file)) {
      byte[] chunk = new byte[65536];
      for (int count; (count = content.read(chunk)) != -1; ) hash.update(chunk, 0, count);
    }
    return HexFormat.of().formatHex(hash.digest());
  }

  static Answer exec(String at, String body) throws InterruptedException {
    return post(at + "/exec", body);
  }

  static String create() throws InterruptedException {
    Answer created = post("/v1/capsules", "{\"memory_mb\":256}");
    say("create", "\"status\":" + created.status);
    String at = "/v1/capsules/" + created.text("id");
    Answer running = call("GET", at + "?wait=running&timeout=120");
    say("wait", "\"status\":" + running.status + ",\"state\":" + running.field("status"));
    return at;
  }

  public static void main(String[] args) throws Exception {
    String at = create();
    talk(at);
    sayAborted("socket", at);
    loseTerminal(at);
    sayAborted("terminal", at);
    work(at);
    abort(at);
    sayAborted("requests", at);
    refuse(at);
    end(at);
    System.exit(0);
  }

  /** The suite looks at what is left behind, and says when it has. */
  static void sayAborted(String of, String at) throws IOException {
    say("aborted", "\"of\":\"" + of + "\",\"id\":\"" + at.substring(at.lastIndexOf('/') + 1) + "\"");
    System.in.read();
  }

  static void work(String at) throws Exception {
    Answer ran = exec(at, "{\"cmd\":\"sh\",\"args\":[\"-c\",\"echo out; echo err >&2; exit 3\"]}");
    say("exec", "\"exit_code\":" + ran.field("exit_code") + ",\"stdout\":" + ran.field("stdout") + ",\"stderr\":"
        + ran.field("stderr"));
    Answer binary = exec(at, "{\"cmd\":\"printf\",\"args\":[\"\\\\377\\\\000\\\\376\"]}");
    byte[] bytes = Base64.getDecoder().decode(binary.text("stdout"));
    say("binary", "\"encoding\":" + binary.field("encoding") + ",\"bytes\":\"" + HexFormat.of().formatHex(bytes) + "\"");
    Answer late = exec(at, "{\"cmd\":\"sleep\",\"args\":[\"300\"],\"timeout\":1}");
    say("time-out", "\"status\":" + late.status + ",\"code\":" + late.field("code"));

    Answer process = exec(at, "{\"cmd\":\"sleep\",\"args\":[\"301\"],\"background\":true}");
    say("background", "\"status\":" + process.status);
    String tag = process.text("tag");
    say("processes", "\"listed\":" + call("GET", at + "/processes").body.contains("\"tag\":\"" + tag + "\""));
    say("kill", "\"status\":" + call("DELETE", at + "/processes/" + tag + "?signal=SIGTERM").status);

    byte[] small = {'\r', '\n', '-', '-', 'b', 0, (byte) 0xff};
    String name = "ü ñ.txt";
    Answer uploaded = upload(at + "/files/write", "/root/" + name, BodyPublishers.ofByteArray(small));
    say("upload", "\"status\":" + uploaded.status);
    Path copy = FOLDER.resolve("copy");
    int status = download(at + "/files/read", "/root/" + name, copy);
    say("read", "\"status\":" + status + ",\"bytes\":\"" + HexFormat.of().formatHex(Files.readAllBytes(copy)) + "\"");
    Answer listing = post(at + "/files/list", "{\"path\":\"/root\"}");
    say("list", "\"listed\":" + listing.body.contains("\"name\":\"" + name + "\""));

    Answer second = upload(at + "/files/write", "/root/second", BodyPublishers.ofByteArray(small), true);
    download(at + "/files/read", "/root/second", copy);
    String bytesRead = HexFormat.of().formatHex(Files.readAllBytes(copy));
    say("file first", "\"status\":" + second.status + ",\"bytes\":\"" + bytesRead + "\"");

    status = upload(at + "/files/stream/write", "/root/big", BodyPublishers.ofFile(BIG)).status;
    Answer sum = exec(at, "{\"cmd\":\"sha256sum\",\"args\":[\"/root/big\"],\"timeout\":0}");
    say("big up", "\"status\":" + status + ",\"whole\":" + sum.text("stdout").startsWith(sum(BIG)));
    status = download(at + "/files/stream/read", "/root/big", copy);
    say("big down", "\"status\":" + status + ",\"whole\":" + sum(copy).equals(sum(BIG)));
  }

  static void abort(String at) throws Exception {
    var body = BodyPublishers.ofString("{\"cmd\":\"sleep\",\"args\":[\"302\"],\"timeout\":0}");
    var soon = request(at + "/exec").header("Content-Type", "application/json").timeout(Duration.ofSeconds(5)).POST(body);
    try {
      client.send(soon.build(), BodyHandlers.ofString());
      throw new IllegalStateException("the request was not aborted");
    } catch (HttpTimeoutException expected) {
      // as it was asked to
    }
    upload(at + "/files/stream/write", "/root/big", BodyPublishers.ofInputStream(Half::new));
    var read = BodyPublishers.ofString("{\"path\":\"/root/big\"}");
    var download = request(at + "/files/stream/read").header("Content-Type", "application/json").POST(read).build();
    try (InputStream begun = client.send(download, BodyHandlers.ofInputStream()).body()) {
      begun.read();
    }
  }

  /** Breaks off in the middle. */
  static class Half extends InputStream {
    int left = 4 << 20;

    @Override
    public int read() throws IOException {
      if (left-- == 0) throw new IOException("the client gives up");
      return 'x';
    }
  }

  static void refuse(String at) throws Exception {
    say("401", send(request(at).setHeader("X-API-Key", "capk_wrong").build()).error());
    say("404", call("GET", "/v1/capsules/cl-none").error());
    say("405", call("PUT", at).error());
    say("400", exec(at, "{\"cmd\":7}").error());
    say("409", call("POST", at + "/resume").error());
    String huge = "{\"cmd\":\"" + "x".repeat(20 << 20) + "\"}";
    var wrong = request(at + "/exec").setHeader("X-API-Key", "capk_wrong").header("Content-Type", "application/json");
    var unauthorized = wrong.POST(BodyPublishers.ofString(huge)).build();
    say("413", exec(at, huge).error());
    var text = request(at + "/exec").header("Content-Type", "text/plain");
    say("415", send(text.POST(BodyPublishers.ofString("{\"cmd\":\"true\"}")).build()).error());
    say("429", post("/v1/capsules", "{\"vcpus\":200}").error());
    int lost = 0;
    for (int count = 0; count < Integer.parseInt(System.getenv("CLIENT_TRIES")); count++) {
      if (exec(at, huge).status != 413) lost++;
      if (send(unauthorized).status != 401) lost++;
      if (post("/v1/nothing", huge).status != 404) lost++;
      for (String verb : new String[] {"write", "stream/write"}) {
        String path = "/v1/capsules/cl-none/files/" + verb;
        if (upload(path, "/root/f", BodyPublishers.ofFile(REFUSED)).status != 404) lost++;
      }
    }
    say("refused", "\"lost\":" + lost);
  }

  static void end(String at) throws Exception {
    Answer paused = call("POST", at + "/pause");
    say("pause", "\"status\":" + paused.status + ",\"state\":" + paused.field("status"));
    say("paused", exec(at, "{\"cmd\":\"true\"}").error());
    int status = upload(at + "/files/write", "/root/f", BodyPublishers.ofFile(REFUSED)).status;
    say("refused upload", "\"status\":" + status);
    Answer resumed = call("POST", at + "/resume");
    say("resume", "\"status\":" + resumed.status + ",\"state\":" + resumed.field("status"));
    String template = "client-" + System.getenv("CLIENT_NAME");
    String body = "{\"sandbox_id\":" + resumed.field("id") + ",\"name\":\"" + template + "\"}";
    say("snapshot", "\"status\":" + post("/v1/snapshots", body).status);
    say("delete snapshot", "\"status\":" + call("DELETE", "/v1/snapshots/" + template).status);
    say("gone", call("GET", at).error());
  }

  // ---- WebSockets ----

  static class Messages implements WebSocket.Listener {
    final BlockingQueue<Answer> arrived = new LinkedBlockingQueue<>();
    final StringBuilder begun = new StringBuilder();
    WebSocket socket;

    static Messages open(String path) {
      Messages messages = new Messages();
      URI uri = URI.create(BASE.replaceFirst("http", "ws") + path);
      messages.socket = client.newWebSocketBuilder().header("X-API-Key", KEY).buildAsync(uri, messages).join();
      return messages;
    }

    @Override
    public CompletionStage<?> onText(WebSocket from, CharSequence text, boolean isLast) {
      begun.append(text);
      if (isLast) {
        arrived.add(new Answer(0, begun.toString()));
        begun.setLength(0);
      }
      from.request(1);
      return null;
    }

    void send(String message) {
      socket.sendText(message, true).join();
    }

    void enter(String line) {
      send("{\"type\":\"input\",\"data\":\"" + Base64.getEncoder().encodeToString(line.getBytes()) + "\"}");
    }

    Answer until(Predicate<Answer> isLast) throws InterruptedException {
      Answer message;
      do message = arrived.take();
      while (!isLast.test(message));
      return message;
    }

    Answer untilType(String type) throws InterruptedException {
      return until(message -> message.text("type").equals(type));
    }

    void untilTyped(String text) throws InterruptedException {
      StringBuilder typed = new StringBuilder();
      until(message -> {
        if (message.text("type").equals("output")) {
          typed.append(new String(Base64.getDecoder().decode(message.text("data"))));
        }
        return typed.indexOf(text) != -1;
      });
    }

    void close() {
      socket.sendClose(WebSocket.NORMAL_CLOSURE, "").join();
    }
  }

  static void loseTerminal(String at) throws Exception {
    Messages lost = Messages.open(at + "/pty");
    lost.send("{\"type\":\"start\",\"cmd\":\"sleep\",\"args\":[\"305\"]}");
    lost.untilType("started");
    lost.socket.abort();
  }

  static void talk(String at) throws Exception {
    Messages stream = Messages.open(at + "/exec/stream");
    stream.send("{\"type\":\"start\",\"cmd\":\"sh\",\"args\":[\"-c\",\"echo out; sleep 303\"]}");
    String first = stream.arrived.take().field("type");
    stream.until(message -> message.text("data").equals("out\\n"));
    stream.send("{\"type\":\"stop\"}");
    say("stream", "\"first\":" + first + ",\"exit_code\":" + stream.untilType("exit").field("exit_code"));

    Messages terminal = Messages.open(at + "/pty");
    terminal.send("{\"type\":\"start\",\"cmd\":\"/bin/bash\",\"cols\":80,\"rows\":24}");
    Answer started = terminal.untilType("started");
    terminal.send("{\"type\":\"resize\",\"cols\":120,\"rows\":40}");
    terminal.enter("stty size; word=again\n");
    terminal.untilTyped("40 120");
    terminal.close();
    Messages returned = Messages.open(at + "/pty");
    returned.send("{\"type\":\"connect\",\"tag\":" + started.field("tag") + "}");
    Answer back = returned.untilType("started");
    returned.enter("echo $word-and-$word\n");
    returned.untilTyped("again-and-again");
    returned.send("{\"type\":\"kill\"}");
    String last = returned.untilType("exit").field("type");
    say("terminal", "\"same\":" + back.field("pid").equals(started.field("pid")) + ",\"last\":" + last);

    Messages dropped = Messages.open(at + "/exec/stream");
    dropped.send("{\"type\":\"start\",\"cmd\":\"sleep\",\"args\":[\"304\"]}");
    dropped.untilType("start");
    dropped.socket.abort();
  }
}
