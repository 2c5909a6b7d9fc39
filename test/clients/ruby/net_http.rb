# What Ruby's net/http does with the service, one JSON line a step; suite.test.ts starts it and judges.
require "digest"
require "json"
require "net/http"
require "stringio"
require "uri"

KEY = ENV.fetch("CAPSULE_API_KEY")
BASE = URI(ENV.fetch("CAPSULE_URL"))
WORK, BIG, REFUSED = ENV.values_at("CLIENT_FOLDER", "CLIENT_FILE", "CLIENT_REFUSED")
METHODS = { "GET" => Net::HTTP::Get, "POST" => Net::HTTP::Post, "PUT" => Net::HTTP::Put, "DELETE" => Net::HTTP::Delete }

$stdout.sync = true

def say(step, **values) = puts({ step:, **values }.to_json)

# A connection of its own for each request, as Net::HTTP.start has it.
def request(method, path, key: KEY, read_timeout: nil)
  http = Net::HTTP.new(BASE.host, BASE.port)
  http.read_timeout = read_timeout
  http.max_retries = 0
  request = METHODS.fetch(method).new(path, { "X-API-Key" => key })
  yield request
  http.start { http.request(request) { |answer| block_given? ? answer.read_body : nil } }
end

def call(method, path, body = nil, **options)
  answer = request(method, path, **options) do |each|
    next if body.nil?
    each["Content-Type"] = "application/json"
    each.body = body.to_json
  end
  [answer.code.to_i, answer.body.to_s.empty? ? nil : JSON.parse(answer.body)]
end

def code(...)
  status, answer = call(...)
  [status, answer&.dig("error", "code")]
end

def send_text(path, text)
  answer = request("POST", path) do |each|
    each["Content-Type"] = "text/plain"
    each.body = text
  end
  [answer.code.to_i, JSON.parse(answer.body)["error"]["code"]]
end

def upload(path, target, file, file_first: false)
  File.open(file, "rb") do |content|
    fields = [["path", target], ["file", content, { filename: File.basename(file) }]]
    request("POST", path) do |each|
      each.set_form(file_first ? fields.reverse : fields, "multipart/form-data")
    end.code.to_i
  end
end

def download(path, target, file)
  Net::HTTP.start(BASE.host, BASE.port, read_timeout: nil) do |http|
    request = Net::HTTP::Post.new(path, { "X-API-Key" => KEY, "Content-Type" => "application/json" })
    request.body = { path: target }.to_json
    http.request(request) do |answer|
      File.open(file, "wb") { |copy| answer.read_body { |chunk| copy.write(chunk) } }
      return answer.code.to_i
    end
  end
end

# Half a form, and then nothing more.
class Half
  def initialize(text) = @left = StringIO.new(text + "x" * (4 << 20))

  def read(length, buffer) = @left.read(length, buffer) || raise(Interrupt)
end

def abort_upload(path, target)
  form = "--b\r\nContent-Disposition: form-data; name=\"path\"\r\n\r\n#{target}\r\n" \
         "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n"
  request("POST", path) do |each|
    each["Content-Type"] = "multipart/form-data; boundary=b"
    each["Transfer-Encoding"] = "chunked"
    each.body_stream = Half.new(form)
  end
rescue Interrupt
  nil
end

def abort_download(path, target)
  Net::HTTP.start(BASE.host, BASE.port) do |http|
    request = Net::HTTP::Post.new(path, { "X-API-Key" => KEY, "Content-Type" => "application/json" })
    request.body = { path: target }.to_json
    http.request(request) { |answer| answer.read_body { raise Interrupt } }
  end
rescue Interrupt
  nil
end

status, capsule = call("POST", "/v1/capsules", { memory_mb: 256 })
say("create", status:)
at = "/v1/capsules/#{capsule["id"]}"
status, capsule = call("GET", "#{at}?wait=running&timeout=120")
say("wait", status:, state: capsule["status"])

run = ->(cmd, *args, **more) { call("POST", "#{at}/exec", { cmd:, args:, **more }) }
_, result = run.("sh", "-c", "echo out; echo err >&2; exit 3")
say("exec", exit_code: result["exit_code"], stdout: result["stdout"], stderr: result["stderr"])
_, result = run.("printf", '\377\000\376')
say("binary", encoding: result["encoding"], bytes: result["stdout"].unpack1("m").unpack1("H*"))
status, result = run.("sleep", "300", timeout: 1)
say("time-out", status:, code: result["error"]["code"])

status, process = run.("sleep", "301", background: true)
say("background", status:)
_, listed = call("GET", "#{at}/processes")
say("processes", listed: listed["processes"].any? { |each| each["tag"] == process["tag"] })
say("kill", status: call("DELETE", "#{at}/processes/#{process["tag"]}?signal=SIGTERM")[0])

small = File.join(WORK, 'small "ü".txt')
File.binwrite(small, "\r\n--b\x00\xff".b)
say("upload", status: upload("#{at}/files/write", "/root/ü ñ.txt", small))
copy = File.join(WORK, "copy")
status = download("#{at}/files/read", "/root/ü ñ.txt", copy)
say("read", status:, bytes: File.binread(copy).unpack1("H*"))
_, listing = call("POST", "#{at}/files/list", { path: "/root" })
say("list", listed: listing["entries"].any? { |entry| entry["name"] == "ü ñ.txt" })

status = upload("#{at}/files/write", "/root/second", small, file_first: true)
download("#{at}/files/read", "/root/second", copy)
say("file first", status:, bytes: File.binread(copy).unpack1("H*"))

hash = Digest::SHA256.file(BIG).hexdigest
status = upload("#{at}/files/stream/write", "/root/big", BIG)
_, result = run.("sha256sum", "/root/big", timeout: 0)
say("big up", status:, whole: result["stdout"].split[0] == hash)
status = download("#{at}/files/stream/read", "/root/big", copy)
say("big down", status:, whole: Digest::SHA256.file(copy).hexdigest == hash)

begin
  call("POST", "#{at}/exec", { cmd: "sleep", args: ["302"], timeout: 0 }, read_timeout: 5)
rescue Net::ReadTimeout
  nil
end
abort_upload("#{at}/files/stream/write", "/root/big")
abort_download("#{at}/files/stream/read", "/root/big")
say("aborted", of: "requests", id: capsule["id"])
$stdin.gets

say("401", answer: code("GET", at, key: "capk_wrong"))
say("404", answer: code("GET", "/v1/capsules/cl-none"))
say("405", answer: code("PUT", at))
say("400", answer: code("POST", "#{at}/exec", { cmd: 7 }))
say("409", answer: code("POST", "#{at}/resume", {}))
huge = { cmd: "x" * (20 << 20) }
say("413", answer: code("POST", "#{at}/exec", huge))
say("415", answer: send_text("#{at}/exec", '{"cmd":"true"}'))
say("429", answer: code("POST", "/v1/capsules", { vcpus: 200 }))
lost = Integer(ENV.fetch("CLIENT_TRIES")).times.flat_map do
  [
    code("POST", "#{at}/exec", huge) == [413, "too_large"],
    code("POST", "#{at}/exec", huge, key: "capk_wrong") == [401, "unauthorized"],
    code("POST", "/v1/nothing", huge) == [404, "not_found"],
    upload("/v1/capsules/cl-none/files/write", "/root/f", REFUSED) == 404,
    upload("/v1/capsules/cl-none/files/stream/write", "/root/f", REFUSED) == 404,
  ]
end.count(false)
say("refused", lost:)

status, capsule = call("POST", "#{at}/pause")
say("pause", status:, state: capsule["status"])
say("paused", answer: code("POST", "#{at}/exec", { cmd: "true" }))
say("refused upload", status: upload("#{at}/files/write", "/root/f", REFUSED))
status, capsule = call("POST", "#{at}/resume")
say("resume", status:, state: capsule["status"])
template = "client-#{ENV.fetch("CLIENT_NAME")}"
say("snapshot", status: call("POST", "/v1/snapshots", { sandbox_id: capsule["id"], name: template })[0])
say("delete snapshot", status: call("DELETE", "/v1/snapshots/#{template}")[0])
say("gone", answer: code("GET", at))
