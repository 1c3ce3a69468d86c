-- Shared by the scripts, and put before each of them.
local function now() -- milliseconds since the epoch, by Redis's clock
	local t = redis.call('TIME')
	return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end
local function int(n) return string.format('%.0f', n) end
-- change counts a change and writes it to the feed. Keeps about the last 20,000.
local function change(meta, feed, ...)
	local rev = redis.call('HINCRBY', meta, 'rev', 1)
	redis.call('XADD', feed, 'MAXLEN', '~', 20000, '*', 'rev', rev, ...)
	return rev
end
local function raise(meta, field, value)
	if tonumber(value) > tonumber(redis.call('HGET', meta, field) or '0') then
		redis.call('HSET', meta, field, value)
	end
end
