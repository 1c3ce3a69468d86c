-- Makes the store if there is none, and says what it is.
-- KEYS  meta
-- ARGV  schema, an incarnation in case it has to be made
-- gives {incarnation, rev, schema}
if not incarnation(KEYS[1]) then
	redis.call('HSET', KEYS[1], 'incarnation', ARGV[2], 'schema', ARGV[1], 'rev', 0, 'taken', 0, 'asof', 0)
end
return redis.call('HMGET', KEYS[1], 'incarnation', 'rev', 'schema')
