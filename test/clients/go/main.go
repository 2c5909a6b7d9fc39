// What Go's net/http does with the service, one JSON line a step; suite.test.ts starts it and judges.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

var (
	base, apiKey = os.Getenv("CAPSULE_URL"), os.Getenv("CAPSULE_API_KEY")
	folder       = os.Getenv("CLIENT_FOLDER")
	bigFile      = os.Getenv("CLIENT_FILE")
	refusedFile  = os.Getenv("CLIENT_REFUSED")
)

type object = map[string]any

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func say(step string, values object) {
	values["step"] = step
	line, err := json.Marshal(values)
	check(err)
	fmt.Println(string(line))
}

func request(ctx context.Context, method, path, key, contentType string, body io.Reader) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, base+path, body)
	check(err)
	request.Header.Set("X-API-Key", key)
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	return http.DefaultClient.Do(request)
}

func encoded(value any) (string, io.Reader) {
	if value == nil {
		return "", nil
	}
	text, err := json.Marshal(value)
	check(err)
	return "application/json", bytes.NewReader(text)
}

func callAs(key, method, path string, value any) (int, object) {
	contentType, body := encoded(value)
	return send(key, method, path, contentType, body)
}

func sendText(path, text string) (int, object) {
	return send(apiKey, "POST", path, "text/plain", strings.NewReader(text))
}

func send(key, method, path, contentType string, body io.Reader) (int, object) {
	answer, err := request(context.Background(), method, path, key, contentType, body)
	if err != nil {
		return 0, object{"error": object{"code": err.Error()}}
	}
	defer answer.Body.Close()
	var result object
	if err := json.NewDecoder(answer.Body).Decode(&result); err != nil && err != io.EOF {
		check(err)
	}
	return answer.StatusCode, result
}

func call(method, path string, value any) (int, object) { return callAs(apiKey, method, path, value) }

func codeOf(status int, answer object) []any {
	failure, _ := answer["error"].(object)
	return []any{status, failure["code"]}
}

// upload writes the form while it is sent, so that its length is not known.
func upload(ctx context.Context, path, target string, content io.Reader) int {
	return uploadInOrder(ctx, path, target, content, false)
}

func uploadInOrder(ctx context.Context, path, target string, content io.Reader, isFileFirst bool) int {
	reader, writer := io.Pipe()
	form := multipart.NewWriter(writer)
	writePath := func() error { return form.WriteField("path", target) }
	writeFile := func() error {
		part, err := form.CreateFormFile("file", `small "ü".txt`)
		if err == nil {
			_, err = io.Copy(part, content)
		}
		return err
	}
	steps := []func() error{writePath, writeFile, form.Close}
	if isFileFirst {
		steps = []func() error{writeFile, writePath, form.Close}
	}
	go func() {
		var err error
		for _, step := range steps {
			if err == nil {
				err = step()
			}
		}
		writer.CloseWithError(err)
	}()
	answer, err := request(ctx, "POST", path, apiKey, form.FormDataContentType(), reader)
	if err != nil {
		return 0
	}
	answer.Body.Close()
	return answer.StatusCode
}

func uploadFile(path, target, file string) int {
	content, err := os.Open(file)
	check(err)
	defer content.Close()
	return upload(context.Background(), path, target, content)
}

func download(path, target, file string) int {
	contentType, body := encoded(object{"path": target})
	answer, err := request(context.Background(), "POST", path, apiKey, contentType, body)
	check(err)
	defer answer.Body.Close()
	copied, err := os.Create(file)
	check(err)
	_, err = io.Copy(copied, answer.Body)
	check(err)
	check(copied.Close())
	return answer.StatusCode
}

func sum(file string) string {
	content, err := os.Open(file)
	check(err)
	defer content.Close()
	hash := sha256.New()
	_, err = io.Copy(hash, content)
	check(err)
	return hex.EncodeToString(hash.Sum(nil))
}

func contains(list any, field string, value any) bool {
	for _, each := range list.([]any) {
		if each.(object)[field] == value {
			return true
		}
	}
	return false
}

type half struct{ left int }

func (h *half) Read(to []byte) (int, error) {
	if h.left == 0 {
		return 0, errors.New("the client gives up")
	}
	count := len(to)
	if count > h.left {
		count = h.left
	}
	h.left -= count
	return count, nil
}

func main() {
	status, capsule := call("POST", "/v1/capsules", object{"memory_mb": 256})
	say("create", object{"status": status})
	id := capsule["id"].(string)
	at := "/v1/capsules/" + id
	status, capsule = call("GET", at+"?wait=running&timeout=120", nil)
	say("wait", object{"status": status, "state": capsule["status"]})
	work(at)
	abort(at)
	say("aborted", object{"of": "requests", "id": id})
	fmt.Scanln()
	refuse(at)
	end(at, id)
}

func exec(at string, more object, cmd string, args ...string) (int, object) {
	body := object{"cmd": cmd, "args": args}
	for name, value := range more {
		body[name] = value
	}
	return call("POST", at+"/exec", body)
}

func work(at string) {
	_, result := exec(at, nil, "sh", "-c", "echo out; echo err >&2; exit 3")
	say("exec", object{"exit_code": result["exit_code"], "stdout": result["stdout"], "stderr": result["stderr"]})
	_, result = exec(at, nil, "printf", `\377\000\376`)
	decoded, err := base64.StdEncoding.DecodeString(result["stdout"].(string))
	check(err)
	say("binary", object{"encoding": result["encoding"], "bytes": hex.EncodeToString(decoded)})
	status, result := exec(at, object{"timeout": 1}, "sleep", "300")
	say("time-out", object{"status": status, "code": codeOf(status, result)[1]})

	status, process := exec(at, object{"background": true}, "sleep", "301")
	say("background", object{"status": status})
	_, listed := call("GET", at+"/processes", nil)
	say("processes", object{"listed": contains(listed["processes"], "tag", process["tag"])})
	status, _ = call("DELETE", at+"/processes/"+process["tag"].(string)+"?signal=SIGTERM", nil)
	say("kill", object{"status": status})

	status = upload(context.Background(), at+"/files/write", "/root/ü ñ.txt", strings.NewReader("\r\n--b\x00\xff"))
	say("upload", object{"status": status})
	copied := filepath.Join(folder, "copy")
	status = download(at+"/files/read", "/root/ü ñ.txt", copied)
	small, err := os.ReadFile(copied)
	check(err)
	say("read", object{"status": status, "bytes": hex.EncodeToString(small)})
	_, listing := call("POST", at+"/files/list", object{"path": "/root"})
	say("list", object{"listed": contains(listing["entries"], "name", "ü ñ.txt")})

	second := uploadInOrder(context.Background(), at+"/files/write", "/root/second", strings.NewReader("\r\n--b\x00\xff"), true)
	download(at+"/files/read", "/root/second", copied)
	small, err = os.ReadFile(copied)
	check(err)
	say("file first", object{"status": second, "bytes": hex.EncodeToString(small)})

	status = uploadFile(at+"/files/stream/write", "/root/big", bigFile)
	_, result = exec(at, object{"timeout": 0}, "sha256sum", "/root/big")
	say("big up", object{"status": status, "whole": strings.Fields(result["stdout"].(string))[0] == sum(bigFile)})
	status = download(at+"/files/stream/read", "/root/big", copied)
	say("big down", object{"status": status, "whole": sum(copied) == sum(bigFile)})
}

func abort(at string) {
	soon, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	contentType, body := encoded(object{"cmd": "sleep", "args": []string{"302"}, "timeout": 0})
	_, err := request(soon, "POST", at+"/exec", apiKey, contentType, body)
	if !errors.Is(err, context.DeadlineExceeded) {
		panic("the request was not aborted")
	}
	upload(context.Background(), at+"/files/stream/write", "/root/big", &half{4 << 20})
	contentType, body = encoded(object{"path": "/root/big"})
	answer, err := request(context.Background(), "POST", at+"/files/stream/read", apiKey, contentType, body)
	check(err)
	_, err = io.CopyN(io.Discard, answer.Body, 1)
	check(err)
	check(answer.Body.Close())
}

func refuse(at string) {
	say("401", object{"answer": codeOf(callAs("capk_wrong", "GET", at, nil))})
	say("404", object{"answer": codeOf(call("GET", "/v1/capsules/cl-none", nil))})
	say("405", object{"answer": codeOf(call("PUT", at, nil))})
	say("400", object{"answer": codeOf(call("POST", at+"/exec", object{"cmd": 7}))})
	say("409", object{"answer": codeOf(call("POST", at+"/resume", nil))})
	tries, err := strconv.Atoi(os.Getenv("CLIENT_TRIES"))
	check(err)
	huge := object{"cmd": strings.Repeat("x", 20<<20)}
	say("413", object{"answer": codeOf(call("POST", at+"/exec", huge))})
	say("415", object{"answer": codeOf(sendText(at+"/exec", `{"cmd":"true"}`))})
	say("429", object{"answer": codeOf(call("POST", "/v1/capsules", object{"vcpus": 200}))})
	lost := 0
	expect := func(wanted, status int) {
		if status != wanted {
			lost++
		}
	}
	for count := 0; count < tries; count++ {
		status, _ := call("POST", at+"/exec", huge)
		expect(413, status)
		status, _ = callAs("capk_wrong", "POST", at+"/exec", huge)
		expect(401, status)
		status, _ = call("POST", "/v1/nothing", huge)
		expect(404, status)
		expect(404, uploadFile("/v1/capsules/cl-none/files/write", "/root/f", refusedFile))
		expect(404, uploadFile("/v1/capsules/cl-none/files/stream/write", "/root/f", refusedFile))
	}
	say("refused", object{"lost": lost})
}

func end(at, id string) {
	status, capsule := call("POST", at+"/pause", nil)
	say("pause", object{"status": status, "state": capsule["status"]})
	say("paused", object{"answer": codeOf(call("POST", at+"/exec", object{"cmd": "true"}))})
	say("refused upload", object{"status": uploadFile(at+"/files/write", "/root/f", refusedFile)})
	status, capsule = call("POST", at+"/resume", nil)
	say("resume", object{"status": status, "state": capsule["status"]})
	template := "client-" + os.Getenv("CLIENT_NAME")
	status, _ = call("POST", "/v1/snapshots", object{"sandbox_id": id, "name": template})
	say("snapshot", object{"status": status})
	status, _ = call("DELETE", "/v1/snapshots/"+template, nil)
	say("delete snapshot", object{"status": status})
	say("gone", object{"answer": codeOf(call("GET", at, nil))})
}
