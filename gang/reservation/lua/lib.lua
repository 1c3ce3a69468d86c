-- Shared by the scripts, and put before each of them.
local function now() -- milliseconds since the epoch, by Redis's clock
	local t = redis.call('TIME')
	return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end
local function int(n) return string.format('%.0f', n) end
-- incarnation names the store, or is false if Redis was emptied. Nothing may be
-- written then: a part of meta would stand in the way of a new one.
local function incarnation(meta) return redis.call('HGET', meta, 'incarnation') end
-- change counts a change and writes it to the feed. About the last 2,000 are kept:
-- entries carry whole reservations, and whoever has missed more reads everything.
local function change(meta, feed, ...)
	local rev = redis.call('HINCRBY', meta, 'rev', 1)
	redis.call('XADD', feed, 'MAXLEN', '~', 2000, '*', 'rev', rev, ...)
	return rev
end
local function raise(meta, field, value)
	if tonumber(value) > tonumber(redis.call('HGET', meta, field) or '0') then
		redis.call('HSET', meta, field, value)
	end
end
