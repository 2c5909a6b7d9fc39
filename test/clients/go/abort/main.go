// Sends requests as they are told on standard input, METHOD PATH MILLISECONDS [JSON], and cancels each so long after it was
// sent. Writes the status of an answer that came before that, or 0.
package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

func status(method, path, json string, after time.Duration) int {
	soon, cancel := context.WithTimeout(context.Background(), after)
	defer cancel()
	request, err := http.NewRequestWithContext(soon, method, os.Getenv("CAPSULE_URL")+path, strings.NewReader(json))
	if err != nil {
		panic(err)
	}
	request.Header.Set("X-API-Key", os.Getenv("CAPSULE_API_KEY"))
	request.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0
	}
	defer answer.Body.Close()
	return answer.StatusCode
}

func main() {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		fields := append(strings.SplitN(lines.Text(), " ", 4), "")
		milliseconds, err := strconv.Atoi(fields[2])
		if err != nil {
			panic(err)
		}
		fmt.Println(status(fields[0], fields[1], fields[3], time.Duration(milliseconds)*time.Millisecond))
	}
}
